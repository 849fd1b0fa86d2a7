"""Every Python recipe in docs/hosts.md and docs/many-writers.md that uses the wheel, run as the page has it."""

import os
import re
import unittest
from pathlib import Path

from packaged.test_alone import run



def recipes(page):
    """The names of the drivers, and the programs, below the heading "Python" of a page."""
    text = Path(os.environ["PAGES"], page).read_text(encoding="utf-8")
    (section,) = re.findall(r"^##+ Python\n(.*?)^##+ ", text, re.MULTILINE | re.DOTALL)
    return re.findall(r"^\*\*(.+?)\*\*.*?^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL)


RECIPES = {page: recipes(page) for page in ("hosts.md", "many-writers.md")}


class Recipes(unittest.TestCase):
    def test_there_is_one_for_each_driver(self):
        names = " ".join(name for name, _ in RECIPES["hosts.md"])
        for driver in ("sqlite3", "apsw", "aiosqlite", "SQLAlchemy", "Django"):
            self.assertIn(driver, names)

    def test_each_runs_and_goes_into_the_log(self):
        for page, found in RECIPES.items():
            for name, text in found:
                with self.subTest(page=page, name=name):
                    self.assertEqual(run(text)[-1:], ["True"])
