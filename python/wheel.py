#!/usr/bin/env python3
"""wheel.py LIBRARY PLATFORM OUT: packs the package and a built library into a wheel, and prints its path.

The same files give the same bytes: names are sorted, modes are fixed, and every time is SOURCE_DATE_EPOCH, or else 1980.
"""

import base64
import csv
import hashlib
import io
import os
import re
import sys
import time
import tomllib
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent


def metadata(project, version):
    fields = [
        ("Metadata-Version", "2.1"),
        ("Name", project["name"]),
        ("Version", version),
        ("Summary", project["description"]),
        ("License", project["license"]["text"]),
        *(("Classifier", each) for each in project["classifiers"]),
        ("Requires-Python", project["requires-python"]),
        ("Description-Content-Type", "text/markdown"),
    ]
    return "".join(f"{name}: {value}\n" for name, value in fields) + "\n" + (HERE / project["readme"]).read_text()


def entry_points(project):
    groups = project["entry-points"].items()
    return "".join(f"[{group}]\n" + "".join(f"{name} = {what}\n" for name, what in rows.items()) for group, rows in groups)


def contents(library, tag):
    """The version, and the files of the wheel by name, except RECORD."""
    project = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]
    package = HERE / "src" / project["name"]
    (version,) = re.findall(r'^__version__ = "(.+)"$', (package / "__init__.py").read_text(), re.MULTILINE)
    info = f"{project['name']}-{version}.dist-info"
    files = {str(path.relative_to(package.parent)): path.read_bytes() for path in package.rglob("*.py")}
    files[f"{project['name']}/libduralite.so"] = Path(library).read_bytes()
    files[f"{info}/METADATA"] = metadata(project, version).encode()
    files[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: duralite\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
    files[f"{info}/entry_points.txt"] = entry_points(project).encode()
    files[f"{info}/LICENSE"] = (HERE.parent / "LICENSE").read_bytes()
    return version, info, files


def record(files, name):
    rows = io.StringIO()
    writer = csv.writer(rows, lineterminator="\n")
    for path, data in sorted(files.items()):
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        writer.writerow([path, f"sha256={digest}", len(data)])
    writer.writerow([name, "", ""])
    return rows.getvalue().encode()


def build(library, platform, out):
    """Writes the wheel into the directory `out`. Returns the wheel's path."""
    tag = f"py3-none-{platform}"
    version, info, files = contents(library, tag)
    when = time.gmtime(max(int(os.environ.get("SOURCE_DATE_EPOCH", 0)), 315532800))[:6]  # a zip cannot hold times before 1980
    names = [*sorted(files), f"{info}/RECORD"]
    files[names[-1]] = record(files, names[-1])
    target = Path(out) / f"duralite-{version}-{tag}.whl"
    with zipfile.ZipFile(target, "w") as archive:
        for name in names:
            entry = zipfile.ZipInfo(name, when)
            entry.create_system = 3  # Unix, for the mode
            entry.external_attr = (0o100755 if name.endswith(".so") else 0o100644) << 16
            archive.writestr(entry, files[name], zipfile.ZIP_DEFLATED, 9)
    return target


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    print(build(*sys.argv[1:]))
