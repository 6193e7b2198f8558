"""The sum of all values of a sequence so far."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.totals = {}

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        value, is_start, is_end, sequence = (
            pb_utils.get_input_tensor_by_name(request, name).as_numpy().item()
            for name in ("VALUE", "START", "END", "CORRID")
        )
        total = value if is_start else self.totals.get(sequence, 0) + value
        if is_end:
            self.totals.pop(sequence, None)
        else:
            self.totals[sequence] = total
        output = pb_utils.Tensor("TOTAL", np.array([[total]], dtype=np.int32))
        return pb_utils.InferenceResponse([output])
