"""The prompt for a question, with what was found about it. The demo model continues Python, so it gets a comment."""

import numpy as np
import triton_python_backend_utils as pb_utils


def text_of(request, name):
    return pb_utils.get_input_tensor_by_name(request, name).as_numpy()[0, 0].decode()


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        prompt = f"# {text_of(request, 'context')}\n# {text_of(request, 'query')}\ndef "
        output = pb_utils.Tensor("prompt", np.array([prompt.encode()], dtype=object))
        return pb_utils.InferenceResponse([output])
