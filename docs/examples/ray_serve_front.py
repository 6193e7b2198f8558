"""The same front as a deployment of Ray Serve (`pip install 'ray[serve]'`), beside the cluster or elsewhere.

ROUTER=http://127.0.0.1:8000 PYTHONPATH=docs/examples serve run ray_serve_front:front
"""

from fastapi_front import app
from ray import serve


@serve.deployment(num_replicas=2)
@serve.ingress(app)
class Front:
    pass


front = Front.bind()
