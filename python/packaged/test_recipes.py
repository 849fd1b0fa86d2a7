"""Every Python recipe of docs/hosts.md that uses the wheel, run from the text itself."""

import os
import re
import unittest
from pathlib import Path

from packaged.test_alone import run

PAGE = Path(os.environ["HOSTS_PAGE"]).read_text(encoding="utf-8")
(SECTION,) = re.findall(r"^## Python\n(.*?)^## ", PAGE, re.MULTILINE | re.DOTALL)
RECIPES = re.findall(r"^\*\*(.+?)\*\*.*?^```python\n(.*?)^```", SECTION, re.MULTILINE | re.DOTALL)


class Recipes(unittest.TestCase):
    def test_there_is_one_for_each_driver(self):
        names = " ".join(name for name, _ in RECIPES)
        for driver in ("sqlite3", "apsw", "aiosqlite", "SQLAlchemy", "Django"):
            self.assertIn(driver, names)

    def test_each_runs_and_goes_into_the_log(self):
        for name, text in RECIPES:
            with self.subTest(name):
                self.assertEqual(run(text)[-1:], ["True"])
