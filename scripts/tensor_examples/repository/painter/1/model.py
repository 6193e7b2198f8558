"""A tiny pipeline of diffusers with random weights: what it paints is noise, but the same for the same prompt and
seed."""

import zlib

import numpy as np
import torch
import triton_python_backend_utils as pb_utils
from diffusers import DDIMPipeline, DDIMScheduler, UNet2DModel

DEFAULT_STEPS = 4


class TritonPythonModel:
    def initialize(self, args):
        torch.manual_seed(0)
        network = UNet2DModel(
            sample_size=32,
            in_channels=3,
            out_channels=3,
            layers_per_block=1,
            block_out_channels=(16, 32),
            down_block_types=("DownBlock2D", "AttnDownBlock2D"),
            up_block_types=("AttnUpBlock2D", "UpBlock2D"),
            norm_num_groups=8,
        )
        self.pipeline = DDIMPipeline(network, DDIMScheduler(num_train_timesteps=100))
        self.pipeline.set_progress_bar_config(disable=True)

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        prompts = pb_utils.get_input_tensor_by_name(request, "prompt").as_numpy()[:, 0]
        seeds = pb_utils.get_input_tensor_by_name(request, "seed").as_numpy()[:, 0]
        steps = pb_utils.get_input_tensor_by_name(request, "steps")
        num_steps = DEFAULT_STEPS if steps is None else int(steps.as_numpy()[0, 0])
        sources = [
            torch.Generator().manual_seed((int(seed) + zlib.crc32(prompt)) % 2**63)
            for seed, prompt in zip(seeds, prompts, strict=True)
        ]
        images = self.pipeline(
            batch_size=len(prompts), generator=sources, num_inference_steps=num_steps, output_type="np"
        ).images
        return pb_utils.InferenceResponse([pb_utils.Tensor("image", np.rint(images * 255).astype(np.uint8))])
