"""The line of documents.txt that is nearest to a vector. The vectors of the lines come from the model `encoder`."""

from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        path = Path(args["model_repository"], args["model_version"], "documents.txt")
        self.documents = path.read_text().splitlines()
        self.embeddings = None

    def execute(self, requests):
        if self.embeddings is None:  # not in initialize: the encoder may be loaded later than this model
            self.embeddings = self.embedded(self.documents)
        return [self.answer(request) for request in requests]

    def embedded(self, documents):
        texts = np.array([[document.encode()] for document in documents], dtype=object)
        request = pb_utils.InferenceRequest(
            model_name="encoder", inputs=[pb_utils.Tensor("text", texts)], requested_output_names=["embedding"]
        )
        response = request.exec()
        if response.has_error():
            raise pb_utils.TritonModelException(response.error().message())
        return pb_utils.get_output_tensor_by_name(response, "embedding").as_numpy()

    def answer(self, request):
        queries = pb_utils.get_input_tensor_by_name(request, "embedding").as_numpy()
        nearest = (queries @ self.embeddings.T).argmax(axis=1)
        contexts = np.array([[self.documents[index].encode()] for index in nearest], dtype=object)
        return pb_utils.InferenceResponse([pb_utils.Tensor("context", contexts)])
