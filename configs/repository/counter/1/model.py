"""Counts to COUNT in as many responses, DELAY_MS apart. Requests are answered by threads, so that several can count at
the same time."""

import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            count = int(pb_utils.get_input_tensor_by_name(request, "COUNT").as_numpy()[0])
            delay = pb_utils.get_input_tensor_by_name(request, "DELAY_MS")
            delay_s = 0.0 if delay is None else float(delay.as_numpy()[0]) / 1e3
            sender = request.get_response_sender()
            threading.Thread(target=self.count, args=(sender, count, delay_s), daemon=True).start()

    def count(self, sender, count, delay_s):
        for value in range(count):
            if sender.is_cancelled():
                break
            time.sleep(delay_s)
            output = pb_utils.Tensor("VALUE", np.array([value], dtype=np.int32))
            sender.send(pb_utils.InferenceResponse([output]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
