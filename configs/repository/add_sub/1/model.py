"""The sum and the difference of two tensors."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        left = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
        right = pb_utils.get_input_tensor_by_name(request, "INPUT1").as_numpy()
        if left.shape != right.shape:
            error = pb_utils.TritonError(
                f"INPUT0 and INPUT1 must have the same shape, got {list(left.shape)} and {list(right.shape)}",
                pb_utils.TritonError.INVALID_ARG,
            )
            return pb_utils.InferenceResponse(error=error)
        outputs = [pb_utils.Tensor("SUM", left + right), pb_utils.Tensor("DIFFERENCE", left - right)]
        return pb_utils.InferenceResponse(outputs)
