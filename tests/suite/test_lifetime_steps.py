"""Steps of random histories, on processes that only answer."""

from types import SimpleNamespace

from sharedtensor_conformance.chapters.lifetime_model import LifetimeModel
from sharedtensor_conformance.chapters.lifetime_steps import ProcessSteps


class Recording(ProcessSteps):
    """Notes what arrives, in order."""

    def __init__(self):
        configuration = SimpleNamespace(strategy="file_descriptor")
        super().__init__(SimpleNamespace(configuration=configuration), None, [])
        self.seen = []

    def check_received(self, process, channel, payload):
        self.seen.append((process.name, payload["number"]))


def test_order_in_which_readers_tell_of_their_messages_is_open():
    """The reader that is asked first has the later message."""
    steps, model = Recording(), LifetimeModel("file_descriptor")
    pending = {}
    for name, number in (("owner", 11), ("child", 9)):
        reader = model.record_start(name)
        reader.apply("waits for a message")
        answer = {"number": number}
        pending[reader] = SimpleNamespace(
            answer=lambda answer=answer: answer, has_answered=lambda: True
        )
    steps.check_untimed_readers(None, pending)
    assert steps.seen == [("child", 9), ("owner", 11)]
    assert steps.lines == ["    child gets #9", "    owner gets #11"]
