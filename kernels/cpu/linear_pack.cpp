// Checkpoint rows into panels.

#include <cstring>

#include "linear_layout.hpp"
#include "vector.hpp"

namespace slipstream {

using namespace linear;

namespace {

constexpr int kChunkInputs = 128;

// Output `index` of a weight made of several sources.
struct Output {
  const SourceRows* source;  // none: past the end
  int64_t row;               // in the source
};

Output find_output(const SourceRows* sources, int num_sources, int64_t index) {
  for (int i = 0; i < num_sources; ++i) {
    if (index < sources[i].outputs) return {&sources[i], index};
    index -= sources[i].outputs;
  }
  return {nullptr, 0};
}

Output output_of_panel(const WeightShape& shape, const SourceRows* sources, int num_sources, int panel, int column) {
  if (!shape.paired) {
    const int64_t index = int64_t{panel} * kPanelOutputs + column;
    return index < shape.outputs ? find_output(sources, num_sources, index) : Output{nullptr, 0};
  }
  const int width = kPanelOutputs / 2, half = shape.outputs / 2;
  const int64_t index = int64_t{panel} * width + column % width;
  return index < half ? find_output(sources, num_sources, index + (column < width ? 0 : half)) : Output{nullptr, 0};
}

float scalar_at(const void* values, Scalar type, int64_t index) {
  switch (type) {
    case Scalar::f32: return static_cast<const float*>(values)[index];
    case Scalar::bf16: return to_float(static_cast<const Bf16*>(values)[index]);
    default: return _cvtsh_ss(static_cast<const uint16_t*>(values)[index]);
  }
}

void convert(float value, float* to) { *to = value; }
void convert(float value, Bf16* to) { *to = to_bf16(value); }

template <class T>
void read_row(const Output& output, int begin, int count, T* to) {
  if (!output.source) {
    std::memset(to, 0, sizeof(T) * static_cast<size_t>(count));
    return;
  }
  const SourceRows& source = *output.source;
  const int64_t first = output.row * source.stride + begin;
  if (source.values_type == Scalar::bf16 && sizeof(T) == sizeof(Bf16)) {
    std::memcpy(to, static_cast<const Bf16*>(source.values) + first, sizeof(T) * static_cast<size_t>(count));
    return;
  }
  for (int i = 0; i < count; ++i) convert(scalar_at(source.values, source.values_type, first + i), to + i);
}

template <class T>
void pack_plain(const WeightShape& shape, const Output* outputs, std::byte* packed) {
  constexpr int kInputs = kWordBytes / sizeof(T);
  T rows[kPanelOutputs][kChunkInputs] = {};
  for (int begin = 0; begin < shape.inputs; begin += kChunkInputs) {
    const int count = shape.inputs - begin < kChunkInputs ? shape.inputs - begin : kChunkInputs;
    const int steps = ceil_div(count, kInputs);
    for (int column = 0; column < kPanelOutputs; ++column) {
      if (count < steps * kInputs) rows[column][count] = T{};
      read_row(outputs[column], begin, count, rows[column]);
    }
    for (int step = 0; step < steps; ++step) {
      for (int column = 0; column < kPanelOutputs; ++column) {
        std::memcpy(packed + column * kWordBytes, &rows[column][step * kInputs], kWordBytes);
      }
      packed += kStepBytes;
    }
  }
}

// As the kernels read it: int8 as sign and magnitude (-128 becomes -127), the others as they are.
uint8_t code_at(WeightKind kind, const Output& output, int input) {
  const SourceRows& source = *output.source;
  const int64_t row = output.row * source.stride;
  if (kind == WeightKind::int4) {
    const auto word = static_cast<uint32_t>(static_cast<const int32_t*>(source.values)[row + input / 8]);
    return static_cast<uint8_t>(word >> (input % 8 * 4) & 15);
  }
  const uint8_t code = static_cast<const uint8_t*>(source.values)[row + input];
  if (kind == WeightKind::fp8) return code;
  const int value = static_cast<int8_t>(code), magnitude = value < 0 ? -value : value;
  return static_cast<uint8_t>((code & 0x80) | (magnitude > 127 ? 127 : magnitude));
}

uint8_t zero_at(const Output& output, int group) {
  const SourceRows& source = *output.source;
  return source.zeros ? source.zeros[output.row * source.zeros_stride + group] : 8;
}

float scale_at(const Output& output, int group) {
  const SourceRows& source = *output.source;
  const int64_t row = (output.row + source.scale_first) / source.scale_outputs;
  return scalar_at(source.scales, source.scales_type, row * source.scales_stride + group);
}

void pack_group(const WeightShape& shape, const Output* outputs, int group, int begin, int count, std::byte* packed) {
  const bool is_int4 = shape.kind == WeightKind::int4;
  auto* scales = reinterpret_cast<float*>(packed);
  auto* zeros = reinterpret_cast<uint8_t*>(packed + kScaleBytes);
  auto* codes = reinterpret_cast<uint8_t*>(packed + group_header_bytes(shape.kind));
  const int step_bytes = kPanelOutputs * (is_int4 ? 1 : 2);
  for (int column = 0; column < kPanelOutputs; ++column) {
    const Output& output = outputs[column];
    const bool valid = output.source != nullptr;
    const uint8_t zero = valid && is_int4 ? zero_at(output, group) : 0;
    scales[column] = valid ? scale_at(output, group) : 0.0f;
    if (is_int4) zeros[nibble_position(column)] = zero;
    for (int input = 0; input < count + count % 2; ++input) {
      const uint8_t code = valid && input < count ? code_at(shape.kind, output, begin + input) : zero;
      uint8_t* step = codes + int64_t{input / 2} * step_bytes;
      if (!is_int4) {
        step[code_position(column, input % 2)] = code;
      } else if (input % 2 == 0) {
        step[nibble_position(column)] = code;
      } else {
        step[nibble_position(column)] = static_cast<uint8_t>(step[nibble_position(column)] | code << 4);
      }
    }
  }
}

}  // namespace

int num_panels(const WeightShape& shape) {
  return shape.paired ? ceil_div(shape.outputs / 2, kPanelOutputs / 2) : ceil_div(shape.outputs, kPanelOutputs);
}

int64_t panel_bytes(const WeightShape& shape) {
  switch (shape.kind) {
    case WeightKind::f32: return int64_t{shape.inputs} * kStepBytes;
    case WeightKind::bf16: return int64_t{ceil_div(shape.inputs, 2)} * kStepBytes;
    default: break;
  }
  const int whole_groups = num_groups(shape) - 1, last_inputs = shape.inputs - whole_groups * shape.group;
  return whole_groups * group_bytes(shape) + group_header_bytes(shape.kind) + code_bytes(shape.kind, last_inputs);
}

int64_t packed_bytes(const WeightShape& shape) { return num_panels(shape) * panel_bytes(shape); }

void pack_panel(const WeightShape& shape, const SourceRows* sources, int num_sources, int panel, std::byte* packed) {
  Output outputs[kPanelOutputs];
  for (int column = 0; column < kPanelOutputs; ++column) {
    outputs[column] = output_of_panel(shape, sources, num_sources, panel, column);
  }
  packed += panel * panel_bytes(shape);
  if (shape.kind == WeightKind::f32) return pack_plain<float>(shape, outputs, packed);
  if (shape.kind == WeightKind::bf16) return pack_plain<Bf16>(shape, outputs, packed);
  const int group_inputs = shape.group == 0 ? shape.inputs : shape.group;
  for (int group = 0, begin = 0; begin < shape.inputs; ++group, begin += group_inputs) {
    const int count = shape.inputs - begin < group_inputs ? shape.inputs - begin : group_inputs;
    pack_group(shape, outputs, group, begin, count, packed + group * group_bytes(shape));
  }
}

}  // namespace slipstream
