"""Gives back the text of a request, in upper case if the parameter `upper` is true."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        (text,) = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy()
        if json.loads(request.parameters() or "{}").get("upper"):
            text = text.decode().upper().encode()
        output = pb_utils.Tensor("text_output", np.array([text], dtype=object))
        return pb_utils.InferenceResponse([output])
