"""The base of all errors of the engine that users read."""

from __future__ import annotations


class CodedError(Exception):
    """The base of all errors, raised as `EngineError("engine-out-of-memory", "the model needs ...")`.

    Tests and scripts rely on the code, which stays; the sentence may be improved. docs/errors.md lists all.
    """

    def __init__(self, code: str, sentence: str) -> None:
        # Both are arguments, so that the error survives being pickled on its way between processes.
        super().__init__(code, sentence)
        self.code = code
        self.sentence = sentence
        # Shown in tracebacks, and found by `pytest.raises(match=...)`.
        self.__notes__ = [code]

    def __str__(self) -> str:
        return self.sentence
