"""The comparison itself: what counts as a failure, and what no run may hide."""

import json
import sys
import tempfile
import time
import unittest
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import compare, execute, rounds, session, suites  # noqa: E402
from harness.environment import COMPAT, hash_of  # noqa: E402

PASSED, FAILED, SKIPPED = ("passed", ""), ("failed", "why"), ("skipped", "")
WAL, AS_IS, CONCURRENT = rounds.Round("wal"), rounds.Round("as-is"), rounds.Round("wal", True)
# Any file stands for the library.
ENVIRONMENT = SimpleNamespace(
    version="3", versions={"sqlite": "3"}, library=Path(__file__), library_hash=hash_of(Path(__file__))
)  # fmt: skip


def result(stock, duralite, verdicts=(), opens=None, complete=True, before=None):
    sides = []
    for tests, words in ((stock, before or {"none": 5}), (duralite, opens or {"active": 5})):
        counts = dict.fromkeys(execute.WORDS, 0) | words
        sides.append(execute.Outcome(dict(tests), counts, complete, "output"))
    return {
        "batch": suites.Batch("cpython", "b", (), True), "reference": sides[0], "tested": sides[1],
        "worse": compare.worse(stock, duralite), "verdicts": list(verdicts),
    }  # fmt: skip


def summary(results, exceptions=(), this_round=WAL, is_whole=True):
    return session.summarize(ENVIRONMENT, this_round, results, list(exceptions), time.monotonic(), is_whole)


class Worse(unittest.TestCase):
    def test_what_passed_on_stock_has_to_pass(self):
        stock = {name: PASSED for name in "abcd"} | {"e": FAILED, "f": SKIPPED}
        duralite = {"a": PASSED, "b": FAILED, "c": SKIPPED, "e": FAILED, "f": SKIPPED}
        self.assertEqual(set(compare.worse(stock, duralite)), {"b", "c", "d"})

    def test_a_set_up_that_fails_here_only_is_worse(self):
        self.assertEqual(set(compare.worse({"a": PASSED}, {"a": PASSED, "setUpClass (x.Y)": FAILED})), {"setUpClass (x.Y)"})

    def test_alone_or_with_its_batch_one_repetition_decides(self):
        judge = compare.judge
        self.assertEqual(judge("a", FAILED, True, [({"a": PASSED}, {"a": FAILED})]).kind, "new")
        self.assertEqual(judge("a", FAILED, True, [({"a": PASSED}, {"a": PASSED})]).kind, "unsteady")
        self.assertEqual(judge("a", FAILED, True, [({"a": FAILED}, {"a": FAILED})]).kind, "unsteady")
        # Order matters to it: alone it passes, with the others it fails again.
        again = [({"a": PASSED}, {"a": PASSED}), ({"a": PASSED}, {"a": FAILED})]
        self.assertEqual(judge("a", FAILED, True, again).kind, "new")
        # It did not run here, twice.
        self.assertEqual(judge("a", compare.ABSENT, True, [({"a": PASSED}, {})]).kind, "new")
        # A class's set-up fails here, and has no name on stock.
        self.assertEqual(judge("setUpClass (x.Y)", FAILED, False, [({}, {"setUpClass (x.Y)": FAILED})]).kind, "new")
        self.assertEqual(judge("setUpClass (x.Y)", FAILED, False, [({}, {})]).kind, "unsteady")


    def test_a_loss_that_does_not_show_again_counts(self):
        judge = compare.judge
        lost = ("failed", "sqlite3.DatabaseError: database disk image is malformed")
        well = [({"a": PASSED}, {"a": PASSED})] * 7
        self.assertEqual(judge("a", lost, True, well).kind, "new")
        self.assertEqual(judge("a", ("failed", "the process ended in this test, status -6"), True, well).kind, "new")
        # Whatever it says, where tests are steady on stock; and not where stock was seen to fail.
        self.assertEqual(judge("a", FAILED, True, well, excusable=False).kind, "new")
        self.assertEqual(judge("a", lost, True, [*well, ({"a": FAILED}, {"a": PASSED})]).kind, "unsteady")
        self.assertEqual(judge("a", FAILED, True, well).kind, "unsteady")
        self.assertEqual(judge("a", FAILED, True, [*well, ({"a": PASSED}, {"a": FAILED})]).kind, "new")


    def test_repetitions_alone_have_no_number_and_those_of_the_batch_have(self):
        numbered = "a (again, 2)"
        one = {
            "batch": suites.Batch("cpython", "b", (), True), "worse": {numbered: FAILED, "b": FAILED, "c": FAILED},
            "reference": execute.Outcome({numbered: PASSED, "b": PASSED, "c": PASSED}),
            "repeats": {numbered: [({"a": PASSED}, {"a": FAILED})], "b": [({"b": PASSED}, {"b": PASSED})] * 6},
            "again": [({numbered: PASSED, "b": PASSED, "c": PASSED}, {"a": PASSED, "b": PASSED, "c": PASSED})],
        }  # fmt: skip
        run = session.Session(None, WAL, {}, 1, print)
        kinds = {verdict.test: verdict.kind for verdict in run._verdicts(one)}
        # c was run once more with its batch only.
        self.assertEqual(kinds, {numbered: "new", "b": "unsteady", "c": "new"})


class Exceptions(unittest.TestCase):
    def test_the_lists_in_the_repository_can_be_read(self):
        for this_round in (WAL, CONCURRENT):
            for item in compare.read_exceptions(this_round.exceptions.read_text(encoding="utf-8")):
                self.assertIn(item.suite, suites.ALL)
                self.assertIn(item.journal, ("wal", "as-is", "*"))

    def test_a_line_without_a_reason_is_refused(self):
        for line in ("cpython | a | wal", "cpython | a | wal |  ", "cpython"):
            with self.assertRaises(ValueError):
                list(compare.read_exceptions(line))

    def test_brackets_in_names_are_no_patterns(self):
        (item,) = compare.read_exceptions("django | a.py::*[x-y] | * | why")
        self.assertTrue(item.covers("django", "a.py::b[x-y]", "wal"))
        self.assertFalse(item.covers("django", "a.py::bx", "wal"))
        self.assertFalse(item.covers("cpython", "a.py::b[x-y]", "wal"))

    def test_an_excepted_failure_does_not_count_and_an_idle_exception_does(self):
        exceptions = list(compare.read_exceptions("cpython | b | wal | why\ncpython | c | wal | why"))
        verdict = compare.Verdict("b", "new", *FAILED)
        results = [result({"a": PASSED, "b": PASSED, "c": PASSED}, {"a": PASSED, "b": FAILED, "c": PASSED}, [verdict])]
        entry = summary(results, exceptions)["suites"]["cpython"]
        self.assertEqual((len(entry["new"]), len(entry["excepted"])), (0, 1))
        self.assertEqual(entry["wrong"], ["the exception for c is not needed"])

    def test_an_exception_for_a_test_of_timing_may_be_idle(self):
        exceptions = list(compare.read_exceptions("cpython | c | wal | sometimes its threads meet"))
        results = [result({"a": PASSED, "c": PASSED}, {"a": PASSED, "c": PASSED})]
        self.assertEqual(summary(results, exceptions)["suites"]["cpython"]["wrong"], [])

    def test_an_exception_for_a_test_that_did_not_run_is_idle_in_a_whole_run_only(self):
        exceptions = list(compare.read_exceptions("cpython | other | * | why"))
        results = [result({"a": PASSED}, {"a": PASSED})]
        for is_whole in (False, True):
            wrong = summary(results, exceptions, is_whole=is_whole)["suites"]["cpython"]["wrong"]
            self.assertEqual(len(wrong), is_whole)


class Verification(unittest.TestCase):
    def wrong(self, **arguments):
        tests = {"a": PASSED}
        this_round = arguments.pop("this_round", WAL)
        return summary([result(tests, tests, **arguments)], this_round=this_round)["suites"]["cpython"]["wrong"]

    def test_a_run_through_the_log_is_fine(self):
        self.assertEqual(self.wrong(), [])
        self.assertEqual(self.wrong(opens={"idle": 3}, this_round=AS_IS), [])

    def test_the_setting_has_to_be_on_for_the_side_under_test_alone(self):
        opens = {"before": {"active": 2}, "this_round": CONCURRENT}
        self.assertEqual(self.wrong(opens={"concurrent": 2, "idle": 1}, **opens), [])
        self.assertEqual(len(self.wrong(opens={"active": 2}, **opens)), 2)
        self.assertEqual(len(self.wrong(opens={"active": 1, "concurrent": 1}, **opens)), 1)
        self.assertEqual(len(self.wrong(opens={"concurrent": 2})), 2)

    def test_a_run_on_plain_sqlite_is_a_failure(self):
        self.assertEqual(len(self.wrong(opens={"none": 5})), 2)
        self.assertEqual(len(self.wrong(opens={"active": 5, "none": 1})), 1)
        self.assertEqual(len(self.wrong(opens={"idle": 5})), 1)
        self.assertEqual(len(self.wrong(opens={"active": 0})), 1)

    def test_a_library_that_changes_during_the_run_is_a_failure(self):
        before = ENVIRONMENT.library_hash
        self.addCleanup(setattr, ENVIRONMENT, "library_hash", before)
        ENVIRONMENT.library_hash = "0" * 64
        self.assertEqual(self.wrong(), ["the library under test was changed during the run"])

    def test_a_batch_that_does_not_come_to_its_end_is_a_failure(self):
        self.assertEqual(len(self.wrong(complete=False)), 2)


class Results(unittest.TestCase):
    def test_a_test_in_which_the_process_died_is_under_way(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "results"
            records = [{"start": "a"}, {"test": "a", "outcome": "passed", "text": ""}, {"start": "b"}]
            path.write_text("\n".join(map(json.dumps, records)) + '\n{"test": "b", "outc')
            self.assertEqual(execute.read_results(path), ({"a": PASSED}, ["b"], False))
            self.assertEqual(execute.read_results(Path(folder) / "none"), ({}, [], False))

    def test_names_to_run_alone(self):
        self.assertEqual(suites.class_or_test("setUpClass (a.B)"), "a.B")
        self.assertEqual(suites.class_or_test("a.B.test_c (again, 2)"), "a.B.test_c")
        self.assertEqual(suites.class_or_test("a.B.test_c"), "a.B.test_c")


if __name__ == "__main__":
    unittest.main()
