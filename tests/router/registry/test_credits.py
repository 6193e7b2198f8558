"""A worker's credits are what it reported, less what it has not counted yet."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from slipstream.router.protocol.messages import Credits
from slipstream.router.registry.credits import Charge, CreditLedger


def free(ledger: CreditLedger) -> tuple[int, int, int]:
    return ledger.free_slots, ledger.free_pages, ledger.free_tokens


def test_there_are_no_credits_before_the_first_report():
    assert free(CreditLedger()) == (0, 0, 0)


def test_what_was_sent_after_the_acknowledged_message_is_subtracted():
    ledger = CreditLedger()
    ledger.report(Credits(0, 4, 100, 1000))
    assert ledger.spend(Charge(1, 10, 100)) == 1
    assert ledger.spend(Charge(1, 20, 200)) == 2
    assert free(ledger) == (2, 70, 700)
    ledger.report(Credits(1, 3, 91, 900))  # the first took 9 pages, not 10
    assert free(ledger) == (2, 71, 700)
    assert ledger.num_unacknowledged == 1


def test_a_held_charge_counts_until_it_is_released():
    ledger = CreditLedger()
    ledger.report(Credits(0, 4, 100, 1000))
    ledger.hold("r", Charge(pages=30, tokens=480))
    assert free(ledger) == (4, 70, 520)
    assert ledger.held == {"r"}
    assert ledger.release("r") == Charge(pages=30, tokens=480)
    assert ledger.release("r") is None
    assert free(ledger) == (4, 100, 1000)


@pytest.mark.parametrize("ack_seq", [2, -1])
def test_a_report_about_a_message_never_sent_is_refused(ack_seq):
    ledger = CreditLedger()
    ledger.report(Credits(0, 4, 100, 1000))
    ledger.spend(Charge(1, 10, 100))
    with pytest.raises(ValueError, match=f"ack_seq {ack_seq}"):
        ledger.report(Credits(ack_seq, 4, 100, 1000))
    assert free(ledger) == (3, 90, 900)


def test_a_report_that_goes_back_is_refused():
    ledger = CreditLedger()
    ledger.spend(Charge())
    ledger.report(Credits(1, 4, 100, 1000))
    with pytest.raises(ValueError, match="the last one, 1"):
        ledger.report(Credits(0, 4, 100, 1000))


CHARGES = st.builds(Charge, st.integers(0, 1), st.integers(0, 9), st.integers(0, 99))


class LedgerAgainstModel(RuleBasedStateMachine):
    """The worker counts messages with a delay; the model subtracts everything from first principles."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = CreditLedger()
        self.base = (0, 0, 0)
        self.acked = 0
        self.sent: list[Charge] = []
        self.held: dict[str, Charge] = {}

    @rule(charge=CHARGES)
    def spend(self, charge):
        self.sent.append(charge)
        assert self.ledger.spend(charge) == len(self.sent)

    @rule(name=st.sampled_from("abc"), charge=CHARGES)
    def hold_or_release(self, name, charge):
        if name in self.held:
            assert self.ledger.release(name) == self.held.pop(name)
        else:
            self.ledger.hold(name, charge)
            self.held[name] = charge

    @precondition(lambda self: self.acked < len(self.sent))
    @rule(data=st.data(), slots=st.integers(0, 9), pages=st.integers(0, 99), tokens=st.integers(0, 999))
    def report(self, data, slots, pages, tokens):
        self.acked = data.draw(st.integers(self.acked, len(self.sent)))
        self.base = (slots, pages, tokens)
        self.ledger.report(Credits(self.acked, slots, pages, tokens))

    @invariant()
    def free_is_what_the_model_says(self):
        pending = [*self.sent[self.acked :], *self.held.values()]
        assert free(self.ledger) == (
            self.base[0] - sum(charge.slots for charge in pending),
            self.base[1] - sum(charge.pages for charge in pending),
            self.base[2] - sum(charge.tokens for charge in pending),
        )
        self.ledger.check_integrity()


TestLedgerAgainstModel = LedgerAgainstModel.TestCase
TestLedgerAgainstModel.settings = settings(max_examples=60, stateful_step_count=20, deadline=None)
