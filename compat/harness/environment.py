"""What the suites run in: a virtual environment, the suites' sources, the forcing extension.

Everything is below out/compat. What has been downloaded stays in its `cache` (or in COMPAT_CACHE)
and is used again, without asking a registry.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COMPAT = ROOT / "compat"
OUT = Path(os.environ.get("COMPAT_OUT") or ROOT / "out" / "compat")
CACHE = Path(os.environ.get("COMPAT_CACHE") or OUT / "cache")
SOURCES = OUT / "sources"
BUILT_LIBRARY = ROOT / "target" / "release" / "libduralite.so"
FORCE_LIBRARY = OUT / "force.so"

# PyPI's packages of peewee hold no tests; Debian's source package does. A release of Debian that has
# another version gives that one.
PEEWEE_VERSION = "3.14.10+dfsg-1"
PEEWEE_HASH = "2ddd6b24151581b641d0c436fef559c2a89aaf7203f59aa889ecbe1db0b87f34"


class Unavailable(Exception):
    """Something could not be had here; the text says what."""


def run(*command, **options):
    result = subprocess.run([str(word) for word in command], text=True, capture_output=True, **options)
    if result.returncode != 0:
        text = (result.stderr or result.stdout).strip()
        raise Unavailable(f"{' '.join(map(str, command[:4]))} ... failed: {text[-600:]}")
    return result.stdout


def stamp_of(*parts):
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part if isinstance(part, bytes) else str(part).encode())
        digest.update(b"\0")
    return digest.hexdigest()


class Environment:
    """The environment for one interpreter; `prepare` makes what is missing."""

    def __init__(self, base_python):
        self.base_python = base_python
        self.version = run(base_python, "-c", "import sys; print('.'.join(map(str, sys.version_info[:3])))").strip()
        self.venv = OUT / f"venv-{self.version}"
        self.python = self.venv / "bin" / "python"
        self.versions = {"cpython": self.version}
        self.library = self.library_hash = None  # the copy under test
        self.cpython_tests = None  # where the package `test` is, if not in the interpreter's own library

    def prepare(self, suites):
        CACHE.mkdir(parents=True, exist_ok=True)
        self._only_run_here()
        self.library, self.library_hash = pin_library()
        self._make_venv()
        self._compile_force()
        for pin in pins(COMPAT / "sources.txt"):
            name, version = pin.split()[0].split("==")
            self.versions[name] = version
            if name in suites:
                unpack(self._sdist(pin, name, version), name, stamp_of(pin))
        if not {"peewee", "peewee-files"}.isdisjoint(suites):
            archive = debian_source("peewee", PEEWEE_VERSION)
            self.versions["peewee"] = archive.name.removeprefix("peewee_").split(".orig")[0]
            if self.versions["peewee"] == PEEWEE_VERSION.split("-")[0] and hash_of(archive) != PEEWEE_HASH:
                raise Unavailable(f"{archive} is not the file that it was")
            unpack(archive, "peewee", stamp_of(hash_of(archive)))
        if not {"cpython", "cpython-files"}.isdisjoint(suites):
            self._find_cpython_tests()
        self.versions["programs"] = "ours, with gunicorn " + next(
            pin.split()[0].split("==")[1] for pin in pins(COMPAT / "requirements.txt") if pin.startswith("gunicorn==")
        )
        self.versions["sqlite"] = run(self.python, "-c", "import sqlite3; print(sqlite3.sqlite_version)").strip()

    def _only_run_here(self):
        """Two runs in one directory would take each other's results for theirs."""
        self._lock = (OUT / "lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Unavailable(f"another run is using {OUT}; COMPAT_OUT names another directory") from None

    def _make_venv(self):
        requirements = COMPAT / "requirements.txt"
        stamp = stamp_of(requirements.read_bytes(), COMPAT, self.base_python)
        if up_to_date(self.venv, stamp):
            return
        shutil.rmtree(self.venv, ignore_errors=True)
        run(self.base_python, "-m", "venv", self.venv)
        pip = [self.python, "-m", "pip", "--disable-pip-version-check", "-q"]
        install = ["install", "--require-hashes", "-r", requirements, "--find-links", CACHE]
        try:
            run(*pip, *install, "--no-index")
        except Unavailable:
            run(*pip, "download", "--require-hashes", "-r", requirements, "-d", CACHE)
            run(*pip, *install, "--no-index")
        # A .pth file is read by every Python of the environment, also with -I and -E.
        site = run(self.python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
        lines = [ROOT / "python" / "src", COMPAT / "inject", "import compat_inject"]
        Path(site, "compat.pth").write_text("".join(f"{line}\n" for line in lines))
        (self.venv / "stamp").write_text(stamp)

    def _find_cpython_tests(self):
        """Those of Debian's Python are in no binary package: they come from its source, of the same version."""
        try:
            run(self.python, "-c", "import test.test_sqlite3")
            return
        except Unavailable:
            name = "python" + ".".join(self.version.split(".")[:2])
        archive = debian_source(name)
        if archive.name.split(".orig")[0] != f"{name}_{self.version}":
            raise Unavailable(f"Python {self.version} has no tests of its own, and Debian's source is {archive.name}")
        unpack(archive, "cpython", stamp_of(archive.name), "/Lib/test/")
        self.cpython_tests = SOURCES / "cpython" / "Lib"

    def _compile_force(self):
        source = COMPAT / "inject" / "force.c"
        if not FORCE_LIBRARY.is_file() or FORCE_LIBRARY.stat().st_mtime < source.stat().st_mtime:
            flags = ["-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror"]
            run("cc", *flags, "-o", FORCE_LIBRARY, source)

    def _sdist(self, pin, name, version):
        archive = CACHE / f"{name}-{version}.tar.gz"
        if not archive.is_file():
            requirement = OUT / f"{name}.txt"
            requirement.write_text(pin + "\n")
            pip = [self.python, "-m", "pip", "--disable-pip-version-check", "-q"]
            run(*pip, "download", "--require-hashes", "--no-deps", "--no-binary", name, "-d", CACHE, "-r", requirement)
        if hash_of(archive) not in pin:
            raise Unavailable(f"{archive} does not have the hash in sources.txt: delete it")
        return archive


def pin_library():
    """Copies the library under test, so that a build meanwhile changes nothing; returns the copy and its hash.

    Otherwise the repetition of a failure might test another library than the failure did, and one that
    is overwritten in place ends the processes that have it mapped.
    """
    if not BUILT_LIBRARY.is_file():
        raise Unavailable(f"{BUILT_LIBRARY} is missing: run `make build`")
    code = BUILT_LIBRARY.read_bytes()
    name = hashlib.sha256(code).hexdigest()
    target = OUT / "library" / name[:16] / BUILT_LIBRARY.name
    if not target.is_file() or hash_of(target) != name:
        shutil.rmtree(OUT / "library", ignore_errors=True)
        target.parent.mkdir(parents=True)
        target.write_bytes(code)
    if hash_of(BUILT_LIBRARY) != name:
        raise Unavailable(f"{BUILT_LIBRARY} is being written: wait for the build")
    return target, name


def pins(path):
    lines = (line.strip() for line in path.read_text().splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def hash_of(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def up_to_date(directory, stamp):
    file = directory / "stamp"
    return file.is_file() and file.read_text() == stamp


def unpack(archive, name, stamp, part="/"):
    """Makes SOURCES/name out of the archive's one top directory, or of what of it has `part` in its path."""
    target = SOURCES / name
    if up_to_date(target, stamp):
        return
    shutil.rmtree(target, ignore_errors=True)
    temporary = SOURCES / f"{name}.new"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    with tarfile.open(archive) as tar:
        if hasattr(tarfile, "data_filter"):
            tar.extraction_filter = tarfile.data_filter
        tar.extractall(temporary, [member for member in tar if part in member.name + "/"])
    (top,) = temporary.iterdir()
    top.rename(target)
    temporary.rmdir()
    (target / "stamp").write_text(stamp)


def debian_source(name, version=None):
    """The upstream archive of a Debian source package, by apt-get and the system's own list of archives."""
    found = sorted(CACHE.glob(f"{name}_*.orig.tar.*"))
    if found:
        return found[0]
    if not shutil.which("apt-get"):
        raise Unavailable(f"the source of {name} comes from Debian, and there is no apt-get here")
    apt = OUT / "apt"
    parts = apt / "parts"
    (apt / "lists" / "partial").mkdir(parents=True, exist_ok=True)
    parts.mkdir(exist_ok=True)
    write_source_lists(parts)
    options = []
    for setting in (
        "Dir::Etc::sourcelist=/dev/null",
        f"Dir::Etc::sourceparts={parts}",
        f"Dir::State::lists={apt / 'lists'}",
        "Dir::Cache::srcpkgcache=",
        "Dir::Cache::pkgcache=",
        "APT::Sandbox::User=",
    ):
        options += ["-o", setting]
    run("apt-get", *options, "update", "-q")
    source = ["apt-get", *options, "source", "--download-only", "--tar-only", "-q"]
    # Not in the cache itself, where half an archive would be taken for a whole one.
    place = apt / "download"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    try:
        run(*source, f"{name}={version}" if version else name, cwd=place)
    except Unavailable:
        if not version:
            raise
        run(*source, name, cwd=place)
    (archive,) = place.glob(f"{name}_*.orig.tar.*")
    return Path(shutil.move(archive, CACHE / archive.name))


def write_source_lists(parts):
    """The system's lists, asking for sources; those of others than Debian would only fail."""
    for path in Path("/etc/apt/sources.list.d").glob("*.sources"):
        blocks = path.read_text().split("\n\n")
        kept = [block for block in blocks if "debian-archive" in block or "/debian" in block]
        lines = ("Types: deb-src" if line.startswith("Types:") else line for line in "\n\n".join(kept).splitlines())
        if kept:
            (parts / path.name).write_text("\n".join(lines) + "\n")
    main = Path("/etc/apt/sources.list")
    if main.is_file():
        entries = [line for line in main.read_text().splitlines() if line.startswith("deb ") and "/debian" in line]
        if entries:
            (parts / "main.list").write_text("".join("deb-src " + entry[4:] + "\n" for entry in entries))


def choose_python():
    """The interpreter that scripts/compat was told of, or this one."""
    return os.environ.get("COMPAT_PYTHON") or sys.executable
