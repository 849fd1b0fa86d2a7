"""The suites: what belongs to each, cut into batches, and how a batch or one test of it is run.

A batch is a process of its own in a directory of its own. `quick` marks what continuous
integration runs.
"""

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from .environment import COMPAT, SOURCES, run

LAUNCH = COMPAT / "inside" / "launch.py"
# One broken batch costs no more than this (seconds), one test no more than TEST_LIMIT.
BATCH_LIMIT = 1200
TEST_LIMIT = 120


@dataclass(frozen=True)
class Batch:
    suite: str
    name: str
    arguments: tuple
    quick: bool

    @property
    def label(self):
        return f"{self.suite}/{self.name}"


def chunks(items, size):
    for start in range(0, len(items), size):
        yield items[start : start + size]


def link_tree(source, target, names):
    """A copy whose files are links: the tests may add to it, and replace what is there."""
    target.mkdir(parents=True, exist_ok=True)
    for name in names:
        if (source / name).is_dir():
            shutil.copytree(source / name, target / name, copy_function=os.link, symlinks=True)
        elif (source / name).exists():
            shutil.copy(source / name, target / name)


def class_or_test(test):
    """The name to run a test by: for "setUpClass (a.B)" that is a.B; "(again, 2)" is the same test."""
    test = re.sub(r" \(again, \d+\)$", "", test)
    found = re.fullmatch(r"\w+ \((.*)\)", test)
    return found.group(1) if found else test


class Suite:
    name = ""
    title = ""
    # Whether a failure may be passed over that does not show again.
    excusable = True

    def batches(self, environment):
        raise NotImplementedError

    def lay_out(self, directory):
        """Prepares the directory and returns the one to run in."""
        return directory

    def arguments_for(self, tests):
        """Arguments of a batch of just these tests."""
        raise NotImplementedError

    def variables(self, environment, directory):
        return {}

    def batch(self, name, arguments, quick):
        return Batch(self.name, name, tuple(map(str, arguments)), quick)


class CPython(Suite):
    name = "cpython"
    title = "CPython's test_sqlite3"

    def batches(self, environment):
        code = (
            "import importlib.util, pkgutil, test.test_sqlite3 as t;"
            "print(*sorted('test.test_sqlite3.' + m.name for m in pkgutil.iter_modules(t.__path__)"
            " if m.name.startswith('test_')));"
            "print('test.test_dbm_sqlite3' if importlib.util.find_spec('test.test_dbm_sqlite3') else '')"
        )
        path = {"PYTHONPATH": str(environment.cpython_tests)} if environment.cpython_tests else {}
        output = run(environment.python, "-c", code, env=os.environ | path).splitlines()
        names = [name for line in output if not line.startswith("test_sqlite3:") for name in line.split()]
        for name in names:
            yield self.batch(name.rpartition(".")[2], ["unittest", name], True)

    def arguments_for(self, tests):
        return ["unittest", *map(class_or_test, tests)]

    def variables(self, environment, directory):
        return {"PYTHONPATH": str(environment.cpython_tests)} if environment.cpython_tests else {}


class CPythonFiles(CPython):
    name = "cpython-files"
    title = CPython.title + ", files for its databases in memory"

    def variables(self, environment, directory):
        return super().variables(environment, directory) | {"COMPAT_MEMORY": "file"}


class SQLAlchemy(Suite):
    name = "sqlalchemy"
    title = "SQLAlchemy, dialect sqlite with a file"
    # aaa_profiling counts calls; perf and typing need no database.
    folders = ("base", "dialect", "engine", "ext", "orm", "sql")
    elsewhere = re.compile(r"/dialect/(mssql|mysql|oracle|postgresql)/")
    quick = re.compile(r"/(dialect/(sqlite/test_|test_)|engine/test_(transaction|execute|reflection|pool|reconnect)"
                       r"|orm/test_(transaction|session|unitofwork)|sql/test_(query|insert_exec|returning))")

    def batches(self, environment):
        source = SOURCES / self.name
        for folder in self.folders:
            files = sorted(str(path.relative_to(source)) for path in (source / "test" / folder).rglob("test_*.py"))
            files = [file for file in files if not self.elsewhere.search("/" + file)]
            quick = [file for file in files if self.quick.search("/" + file)]
            rest = [file for file in files if file not in quick]
            for word, chosen in (("quick", quick), ("more", rest)):
                for number, part in enumerate(chunks(chosen, 10)):
                    yield self.batch(f"{folder}-{word}-{number}", self._pytest(part), word == "quick")

    def _pytest(self, names):
        return ["pytest", "-o", "addopts=", "-q", "--tb=short", "--strict-markers", "-p", "no:cacheprovider",
                "--continue-on-collection-errors", "-m", "not memory_intensive and not timing_intensive", "--db=sqlite_file", *names]

    def lay_out(self, directory):
        link_tree(SOURCES / self.name, directory, ["lib", "test", "examples", "setup.cfg", "pyproject.toml"])
        return directory

    def arguments_for(self, tests):
        names = (re.sub(r" \(again, \d+\)$", "", test) for test in tests)
        return self._pytest(name.removeprefix("collection of ") for name in names)


class Django(Suite):
    name = "django"
    title = "Django, backend sqlite3 with files"
    # All that use a database of SQLite, but test_runner: it runs test runners inside the test runner, whose results would be
    # taken for its own.
    quick = """
        backends transactions transaction_hooks migrations multiple_database select_for_update bulk_create
        delete update get_or_create force_insert_update constraints schema introspection
        test_utils servers sessions_tests fixtures queryset_pickle raw_query
        """.split()
    more = """
        admin_changelist admin_custom_urls admin_docs admin_filters admin_inlines admin_ordering admin_utils
        admin_views admin_widgets aggregation aggregation_regress annotations async auth_tests base basic cache
        composite_pk contenttypes_tests context_processors custom_columns custom_lookups custom_managers
        custom_methods custom_migration_operations custom_pk datatypes dates datetimes db_functions db_typecasts
        db_utils dbshell defer defer_regress delete_regress distinct_on_fields empty empty_models expressions
        expressions_case expressions_window extra_regress field_defaults file_storage file_uploads filtered_relation
        fixtures_model_package fixtures_regress flatpages_tests foreign_object forms_tests from_db_value
        generic_inline_admin generic_relations generic_relations_regress generic_views get_earliest_or_latest
        get_object_or_404 handlers indexes inline_formsets inspectdb invalid_models_tests known_related_objects
        lookup m2m_and_m2o m2m_intermediary m2m_multiple m2m_recursive m2m_regress m2m_signals m2m_through
        m2m_through_regress m2o_recursive managers_regress many_to_many many_to_one many_to_one_null max_lengths
        messages_tests migrate_signals migration_test_data_persistence migrations2 model_fields model_forms
        model_formsets model_formsets_regress model_indexes model_inheritance model_inheritance_regress model_options
        model_package model_regress modeladmin mutually_referential nested_foreign_keys null_fk null_fk_ordering
        null_queries one_to_one or_lookups order_with_respect_to ordering pagination prefetch_related properties
        proxy_model_inheritance proxy_models queries redirects_tests reserved_names reverse_lookup save_delete_hooks
        select_related select_related_onetoone select_related_regress serializers signals sitemaps_tests
        sites_framework sites_tests str string_lookup swappable_models syndication_tests template_tests test_client
        test_client_regress test_exceptions timezones unmanaged_models update_only_fields validation view_tests
        xor_lookups
        """.split()

    def batches(self, environment):
        tests = SOURCES / self.name / "tests"
        for word, labels, size in (("quick", self.quick, 9), ("more", self.more, 12)):
            present = [label for label in labels if (tests / label / "__init__.py").exists()]
            for number, part in enumerate(chunks(present, size)):
                yield self.batch(f"{word}-{number}", self._runtests(part), word == "quick")

    def _runtests(self, labels):
        return ["script", "runtests.py", "--settings=django_settings", "--parallel=1", "--noinput", "-v0", *labels]

    def lay_out(self, directory):
        link_tree(SOURCES / self.name, directory, ["tests", "django", "scripts", "docs", "pyproject.toml"])
        shutil.copy(COMPAT / "inside" / "django_settings.py", directory / "tests")
        return directory / "tests"

    def arguments_for(self, tests):
        return self._runtests(map(class_or_test, tests))

    def variables(self, environment, directory):
        return {"PYTHONPATH": str(directory)}


class Peewee(Suite):
    name = "peewee"
    title = "peewee, SqliteDatabase with a file"
    # Those of tests/__init__.py that need neither another database nor a compiled extension of peewee's.
    modules = """
        db_tests expressions fields keys manytomany models model_save model_sql prefetch_tests queries regressions
        results schema sql transactions dataset db_url extra_fields hybrid kv migrations pool pwiz_integration
        reflection returning shortcuts signals sqlite_changelog sqliteq sqlite_udf test_utils
        """.split()
    quick = True

    def batches(self, environment):
        tests = SOURCES / "peewee" / "tests"
        present = [module for module in self.modules if (tests / f"{module}.py").exists()]
        for number, part in enumerate(chunks(present, 8)):
            yield self.batch(f"tests-{number}", self._runtests(part), self.quick)

    def _runtests(self, names):
        return ["script", "runtests.py", "-e", "sqlite", *names]

    def lay_out(self, directory):
        link_tree(SOURCES / "peewee", directory, ["tests", "playhouse", "peewee.py", "pwiz.py", "runtests.py"])
        return directory

    def arguments_for(self, tests):
        return self._runtests(map(class_or_test, tests))

    def variables(self, environment, directory):
        return {"PEEWEE_TEST_BACKEND": "sqlite"}


class PeeweeFiles(Peewee):
    name = "peewee-files"
    title = Peewee.title + ", and for those in memory"
    quick = False

    def variables(self, environment, directory):
        return super().variables(environment, directory) | {"COMPAT_MEMORY": "file"}


class Programs(Suite):
    name = "programs"
    title = "programs that fork, and that handle files"
    # These race on purpose, and pass on stock SQLite every time.
    excusable = False

    def batches(self, environment):
        for path in sorted((COMPAT / "programs").glob("test_*.py")):
            yield self.batch(path.stem.removeprefix("test_"), ["unittest", path.stem], True)

    def arguments_for(self, tests):
        return ["unittest", *map(class_or_test, tests)]

    def variables(self, environment, directory):
        return {"PYTHONPATH": str(COMPAT / "programs")}


SUITES = (CPython(), CPythonFiles(), Programs(), Peewee(), PeeweeFiles(), Django(), SQLAlchemy())
ALL = {suite.name: suite for suite in SUITES}
