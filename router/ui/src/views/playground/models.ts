/** Models of a repository, in the words of KServe v2. */

export interface IndexEntry {
  name: string;
  version?: string;
  state?: string;
  reason?: string;
}

export interface TensorMetadata {
  name: string;
  datatype: string;
  /** -1: any size. The first dimension is the batch where the model has one. */
  shape: number[];
}

export interface ModelMetadata {
  name: string;
  versions: string[];
  platform: string;
  inputs: TensorMetadata[];
  outputs: TensorMetadata[];
}

export interface EnsembleStep {
  model_name: string;
  model_version: number | string;
  /** Names of the model's tensors to names of the ensemble's. */
  input_map: Record<string, string>;
  output_map: Record<string, string>;
}

interface ConfigTensor {
  name: string;
  optional?: boolean;
}

export interface ModelConfig {
  name: string;
  platform?: string;
  backend?: string;
  max_batch_size?: number;
  input?: ConfigTensor[];
  sequence_batching?: unknown;
  model_transaction_policy?: { decoupled?: boolean };
  ensemble_scheduling?: { step?: EnsembleStep[] };
}

export interface Duration {
  count: number;
  ns: number;
}

export interface ModelStatistics {
  version: string;
  inference_count: number;
  execution_count: number;
  inference_stats: Record<string, Duration>;
}

export interface Model {
  metadata: ModelMetadata;
  config: ModelConfig;
}

export function pathOf(model: string, version = ""): string {
  const path = `v2/models/${encodeURIComponent(model)}`;
  return version ? `${path}/versions/${encodeURIComponent(version)}` : path;
}

export function isDecoupled(config: ModelConfig): boolean {
  return config.model_transaction_policy?.decoupled ?? false;
}

export function optionalInputs(config: ModelConfig): Set<string> {
  return new Set((config.input ?? []).filter((tensor) => tensor.optional).map((tensor) => tensor.name));
}

export function stepsOf(config: ModelConfig): EnsembleStep[] {
  return config.ensemble_scheduling?.step ?? [];
}
