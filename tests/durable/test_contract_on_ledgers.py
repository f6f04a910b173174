"""The tests of `Dispatcher`, one per sentence of the contract and the scenarios, on every ledger.

They are not copied: the functions are those of tests/impl, with another dispatcher in the place of the one in
memory. What does not apply is listed, with the reason.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

from ledgers import KINDS, in_place_of_dispatcher, ledgers, module_of

MODULES = (
    "test_contract_prompts",
    "test_contract_cancels",
    "test_contract_handles",
    "test_contract_completions",
    "test_contract_keys",
    "test_contract_line",
    "test_seed_scenarios",
    "test_runners",
    "test_waits_of_runners",
)
ITS_STORE = "a ledger has no store of messages beside it: what fails, or is slow, is the whole step"
STAYS = "what is accepted and queued stays on the ledger when one process closes"
AT_ONCE = "on a ledger, submit accepts and enters in one commit"
SETTLED = "a covered turn may have settled before the next call has its answer from the ledger"
NOT_ASYNC = "about names and signatures, not about a dispatcher"
DOES_NOT_APPLY = {
    "test_all_parameters_but_the_runner_are_keywords": "the ledger is the second parameter",
    "test_another_dispatcher_in_memory_has_another_life": "a ledger outlives its dispatchers",
    "test_every_name_of_the_contract_is_public": NOT_ASYNC,
    "test_refusals_are_turngate_errors": NOT_ASYNC,
    "test_signature_of_accept": NOT_ASYNC,
    "test_states_have_the_values_of_the_lifecycle": NOT_ASYNC,
    "test_submit_accepts_now_and_enters_in_the_background": AT_ONCE,
    "test_a_cancel_right_after_submit_cancels_on_entry": AT_ONCE,
    "test_aclose_cancels_and_waits_until_no_run_owes_its_run_complete": STAYS,
    "test_covered_runs_include_those_that_an_earlier_cancel_covered_and_that_still_settle": ITS_STORE,
    "test_cancel_run_of_a_run_cancelled_on_entry_returns_it_while_it_settles": ITS_STORE,
    "test_messages_is_the_store_in_memory_unless_given": ITS_STORE,
    "test_a_resume_while_a_turn_settles_is_not_forgotten": ITS_STORE,
    "test_a_prompt_for_a_turn_that_does_not_run_is_refused": ITS_STORE,
    "test_a_finishing_close_releases_what_is_accepted_and_cancels_what_is_held": STAYS,
    "test_a_close_cancels_held_runs_in_sessions_without_a_turn": STAYS,
    "test_a_store_that_fails_gives_an_error_and_still_one_run_complete": ITS_STORE,
    "test_a_store_may_wait_for_the_active_turn_when_it_writes_one_that_was_cancelled_on_entry": ITS_STORE,
    "test_a_task_of_the_runner_may_wait_while_the_turn_is_written": ITS_STORE,
    "test_reject_raises_when_anything_of_the_session_is_in_flight": ITS_STORE,
    "test_interrupt_cancels_all_that_came_before_and_is_accepted_after_it": SETTLED,
    "test_interrupt_is_not_foldable_and_finds_room_in_a_full_queue": SETTLED,
    "test_03_sequences_increase_in_the_order_of_accepting": "on a ledger they do within a session",
    "test_23_a_follow_up_queued_after_the_cancel_survives_it": SETTLED,
    "test_11_a_failed_write_on_entry_is_the_error_of_the_run_complete": ITS_STORE,
    "test_17_a_canceled_turn_is_written_although_the_caller_is_cancelled": ITS_STORE,
    "test_19_a_covered_follow_up_of_a_busy_session_is_cancelled_on_entry_not_queued": ITS_STORE,
    "test_21_a_session_stays_busy_until_the_cancelled_turn_is_written": ITS_STORE,
}


def cases() -> list[tuple[str, str]]:
    return [
        (module, name)
        for module in MODULES
        for name in vars(module_of(module))
        if name.startswith("test_") and name not in DOES_NOT_APPLY
    ]


def test_the_cases_that_do_not_apply_exist() -> None:
    names = {name for module in MODULES for name in vars(module_of(module))}
    assert set(DOES_NOT_APPLY) <= names


def arguments(test: Any, tmp_path: Path) -> list[dict[str, Any]]:
    """Return what to call a test with: a folder, or each of the values that it is parametrised with."""
    wanted = inspect.signature(test).parameters
    known = {"tmp_path": tmp_path}
    calls = [{name: known[name] for name in wanted if name in known}]
    for mark in getattr(test, "pytestmark", []):
        if mark.name != "parametrize":
            continue
        name, values = mark.args
        calls = [{**call, name: value} for call in calls for value in values]
    return calls


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("module", "name"), cases())
def test_contract(module: str, name: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = module_of(module)
    test = getattr(home, name)
    for number, call in enumerate(arguments(test, tmp_path)):
        folder = tmp_path / str(number)
        folder.mkdir()
        with ledgers(kind, folder) as make, in_place_of_dispatcher(home, make, monkeypatch):
            test(**call)
