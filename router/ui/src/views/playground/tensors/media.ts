/** Pictures and sound as values of tensors. Browsers decode them; nothing is sent for it. */

import type { TensorMetadata } from "../models";
import { isInteger } from "./datatypes";
import type { FileValues } from "./input_values";
import { imagePlaces } from "./shapes";

export type PixelScale = "0..1" | "-1..1" | "0..255" | "ImageNet";
export const PIXEL_SCALES: readonly PixelScale[] = ["0..1", "-1..1", "0..255", "ImageNet"];

const IMAGENET_MEAN = [0.485, 0.456, 0.406];
const IMAGENET_DEVIATION = [0.229, 0.224, 0.225];
const SAMPLE_RATE = 16_000;
const DEFAULT_SIDE = 224;

/** Whether a file makes values for `tensor`, and what kinds: the `accept` of a file field. */
export function acceptedFor(tensor: TensorMetadata): string {
  if (tensor.datatype === "BYTES") return "*/*";
  if (imagePlaces(tensor.shape)) return "image/*";
  return tensor.datatype.startsWith("FP") && tensor.shape.at(-1) === -1 ? "audio/*" : "";
}

export async function valuesOf(file: File, tensor: TensorMetadata, scale: PixelScale): Promise<FileValues> {
  if (tensor.datatype === "BYTES") {
    return { name: file.name, bytes: new Uint8Array(await file.arrayBuffer()), elements: [], shape: [] };
  }
  return imagePlaces(tensor.shape) ? pixelsOf(file, tensor, scale) : samplesOf(file, tensor);
}

async function pixelsOf(file: File, tensor: TensorMetadata, scale: PixelScale): Promise<FileValues> {
  const places = imagePlaces(tensor.shape);
  if (!places || places.channels === null) throw new RangeError(`${tensor.name} has no shape of an image.`);
  const picture = await createImageBitmap(file);
  const sizeAt = (axis: number) => ((tensor.shape[axis] ?? -1) < 0 ? DEFAULT_SIDE : (tensor.shape[axis] ?? 0));
  const height = sizeAt(places.height);
  const width = sizeAt(places.width);
  const context = new OffscreenCanvas(width, height).getContext("2d");
  if (!context) throw new RangeError("This browser draws no pictures.");
  context.drawImage(picture, 0, 0, width, height);
  const { data } = context.getImageData(0, 0, width, height);
  const numChannels = tensor.shape[places.channels] ?? 3;
  const isFirst = places.channels < places.height;
  const elements = new Array<number>(numChannels * height * width);
  for (let pixel = 0; pixel < height * width; pixel++) {
    for (let channel = 0; channel < numChannels; channel++) {
      const at = isFirst ? channel * height * width + pixel : pixel * numChannels + channel;
      elements[at] = scaled(levelOf(data, pixel, channel, numChannels), channel, tensor.datatype, scale);
    }
  }
  const shape = tensor.shape.map((dim, axis) =>
    axis === places.height
      ? height
      : axis === places.width
        ? width
        : axis === places.channels
          ? numChannels
          : Math.abs(dim),
  );
  return { name: file.name, bytes: null, elements, shape };
}

function levelOf(data: Uint8ClampedArray, pixel: number, channel: number, numChannels: number): number {
  const at = (index: number) => data[pixel * 4 + index] ?? 0;
  return numChannels === 1 ? Math.round(0.299 * at(0) + 0.587 * at(1) + 0.114 * at(2)) : at(channel);
}

function scaled(level: number, channel: number, datatype: string, scale: PixelScale): number {
  if (isInteger(datatype) || scale === "0..255") return level;
  if (scale === "0..1") return level / 255;
  if (scale === "-1..1") return level / 127.5 - 1;
  return (level / 255 - (IMAGENET_MEAN[channel] ?? 0)) / (IMAGENET_DEVIATION[channel] ?? 1);
}

/** Sound as one channel at 16 kHz, which models of speech take. */
async function samplesOf(file: File, tensor: TensorMetadata): Promise<FileValues> {
  const context = new OfflineAudioContext(1, 1, SAMPLE_RATE);
  const sound = await context.decodeAudioData(await file.arrayBuffer());
  const elements = new Array<number>(sound.length).fill(0);
  for (let channel = 0; channel < sound.numberOfChannels; channel++) {
    sound.getChannelData(channel).forEach((sample, at) => {
      elements[at] = (elements[at] ?? 0) + sample / sound.numberOfChannels;
    });
  }
  const shape = tensor.shape.map((dim, axis) => (axis === tensor.shape.length - 1 ? sound.length : Math.abs(dim)));
  return { name: file.name, bytes: null, elements, shape };
}
