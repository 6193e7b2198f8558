"""The prompt for a wish, with what was found about it, in the form of the demo model's chat template."""

import numpy as np
import triton_python_backend_utils as pb_utils


def text_of(request, name):
    return pb_utils.get_input_tensor_by_name(request, name).as_numpy()[0, 0].decode()


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        prompt = f"<|user|>{text_of(request, 'query')} ({text_of(request, 'context')})<|end|><|assistant|>"
        output = pb_utils.Tensor("prompt", np.array([prompt.encode()], dtype=object))
        return pb_utils.InferenceResponse([output])
