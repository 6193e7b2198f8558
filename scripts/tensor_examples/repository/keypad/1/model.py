"""Hears the keys of a telephone in audio of 16 kHz: the tensors of a speech model like Whisper, without its weights.

Each group of keys is a response of its own, with when it began and ended. Translated, the keys are English words.
"""

import numpy as np
import triton_python_backend_utils as pb_utils

RATE = 16_000
FRAME, HOP = 512, 160  # samples: 32 ms, each 10 ms
LOW, HIGH = (697, 770, 852, 941), (1209, 1336, 1477, 1633)  # Hz of the rows and columns (ITU-T Q.23)
KEYS = "123A456B789C*0#D"
WORDS = (
    *("one", "two", "three", "A", "four", "five", "six", "B"),
    *("seven", "eight", "nine", "C", "star", "zero", "hash", "D"),
)
SILENCE = 1e-5  # mean square of a frame
PURE = 0.7  # of the energy of a frame lies in the two tones of a key
PAUSE_S = 0.4  # between groups


def keys_in(audio):
    """What is heard in each frame: a key, or "" for none."""
    if len(audio) < FRAME:
        audio = np.pad(audio, (0, FRAME - len(audio)))
    frames = np.lib.stride_tricks.sliding_window_view(audio, FRAME)[::HOP] * np.hanning(FRAME)
    waves = np.exp(-2j * np.pi * np.outer(np.arange(FRAME), LOW + HIGH) / RATE)
    powers = np.abs(frames @ waves) ** 2
    energies = (frames**2).sum(axis=1)
    low, high = powers[:, :4], powers[:, 4:]
    pure = (low.max(axis=1) + high.max(axis=1)) / np.maximum(energies, 1e-12) / (FRAME / 3)
    heard = (energies / FRAME > SILENCE) & (pure > PURE)
    found = low.argmax(axis=1) * 4 + high.argmax(axis=1)
    return [KEYS[key] if is_heard else "" for key, is_heard in zip(found, heard, strict=True)]


def groups_of(keys):
    """(keys, start, end) in seconds of each group."""
    groups, before = [], ""
    for index, key in enumerate(keys):
        now_s = index * HOP / RATE
        if key and key != before:
            if not groups or now_s - groups[-1][2] > PAUSE_S:
                groups.append(["", now_s, now_s])
            groups[-1][0] += key
        if key:
            groups[-1][2] = now_s + HOP / RATE
        before = key
    return groups


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            self.answer(request)

    def answer(self, request):
        sender = request.get_response_sender()
        audio = pb_utils.get_input_tensor_by_name(request, "audio").as_numpy()
        task = pb_utils.get_input_tensor_by_name(request, "task")
        translates = task is not None and task.as_numpy()[0] == b"translate"
        for keys, start_s, end_s in groups_of(keys_in(audio)):
            text = " ".join(WORDS[KEYS.index(key)] for key in keys) if translates else keys
            outputs = [
                pb_utils.Tensor("text", np.array([f" {text}".encode()], object)),
                pb_utils.Tensor("start", np.array([start_s], np.float32)),
                pb_utils.Tensor("end", np.array([end_s], np.float32)),
            ]
            sender.send(pb_utils.InferenceResponse(outputs))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
