// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/src/kernels/adaptive.h"
#include "core/src/kernels/instruction_set.h"
#include "core/src/kernels/operations.h"
#include "core/src/kernels/vector.h"

// The loops. For the files of one instruction set only: see Note [One instruction set a file].

namespace ronde::kernels {
namespace {

template <typename Element>
constexpr std::size_t kLanes = sizeof(typename Element::Raw) / sizeof(typename Element::Storage);

// The operands of a compute step: at an element's position in every input.

/// `kCount` whole vectors.
template <std::size_t kCountValue>
struct Whole {
  static constexpr std::size_t kCount = kCountValue;
  std::size_t position;

  template <typename Element>
  [[gnu::always_inline]] typename Element::Wide load(const void* base, std::size_t index) const {
    const std::size_t offset =
        (position + index * kLanes<Element>)*sizeof(typename Element::Storage);
    typename Element::Raw raw;
    __builtin_memcpy(&raw, static_cast<const char*>(base) + offset, sizeof raw);
    return Element::widen(raw);
  }
};

/// The first `lanes` elements of one vector; the other lanes are zero.
struct Partial {
  static constexpr std::size_t kCount = 1;
  std::size_t position;
  std::size_t lanes;

  template <typename Element>
  [[gnu::always_inline]] typename Element::Wide load(const void* base, std::size_t) const {
    constexpr std::size_t kSize = sizeof(typename Element::Storage);
    typename Element::Raw raw{};
    __builtin_memcpy(&raw, static_cast<const char*>(base) + position * kSize, lanes * kSize);
    return Element::widen(raw);
  }
};

/// The operands of Kernels::reduce, and the work on them.
struct ReduceTask {
  void* output;
  const void* const* inputs;
  std::size_t input_count;
  std::size_t count;
  const Reduction& reduction;
  bool streaming;
};

// Compute steps: they fill `result` from the operands at `at`.

/// Two inputs, scaled at most by a factor at the end: the common case.
template <typename ElementType, ReduceOp kOp>
struct Pair {
  using Element = ElementType;
  using Wide = typename Element::Wide;
  const void* first;
  const void* second;
  Scale<Wide> scale;

  template <typename At>
  [[gnu::always_inline]] void operator()(Wide (&result)[At::kCount], At at) const {
#pragma GCC unroll 4
    for (std::size_t i = 0; i < At::kCount; ++i) {
      Wide value = combine<Element, kOp>(at.template load<Element>(first, i),
                                         at.template load<Element>(second, i));
      if constexpr (kFloating<Wide>) value = value * scale.factor;
      result[i] = canonical(value);
    }
  }
};

/// Any number of inputs, of which some may be missing, and any scaling.
template <typename ElementType, ReduceOp kOp>
struct Several {
  using Element = ElementType;
  using Wide = typename Element::Wide;
  static constexpr Lane<Wide> kNeutral = neutral<Element>(kOp);
  const void* const* inputs;
  std::size_t input_count;
  /// The neutral element can be the first operand wherever the missing inputs are: it only changes
  /// a sum's -0 to +0, and at whatever place it is, no sum with it is -0.
  bool starts_neutral;
  Scale<Wide> prescale;
  Scale<Wide> scale;

  template <typename At>
  [[gnu::always_inline]] void operator()(Wide (&result)[At::kCount], At at) const {
    const std::size_t first = starts_neutral ? 0 : 1;
#pragma GCC unroll 4
    for (std::size_t i = 0; i < At::kCount; ++i) {
      result[i] = starts_neutral ? splat<Wide>(kNeutral) : operand(at, 0, i);
    }
    for (std::size_t k = first; k < input_count; ++k) {
      if (inputs[k] == nullptr) continue;
#pragma GCC unroll 4
      for (std::size_t i = 0; i < At::kCount; ++i) {
        result[i] = combine<Element, kOp>(result[i], operand(at, k, i));
      }
    }
#pragma GCC unroll 4
    for (Wide& value : result) value = canonical(scaled(value, scale));
  }

 private:
  template <typename At>
  [[gnu::always_inline]] Wide operand(At at, std::size_t input, std::size_t index) const {
    return scaled(at.template load<Element>(inputs[input], index), prescale);
  }
};

/// One input, perhaps of another type, scaled; bytes stay as they are.
template <typename ElementType>
struct Converted {
  using Element = ElementType;
  using Wide = typename Element::Wide;
  const void* input;
  Scale<Wide> scale;

  template <typename At>
  [[gnu::always_inline]] void operator()(Wide (&result)[At::kCount], At at) const {
#pragma GCC unroll 4
    for (std::size_t i = 0; i < At::kCount; ++i) {
      result[i] = canonical(scaled(at.template load<Element>(input, i), scale));
    }
  }
};

/// The destination of the results.
///
/// No store comes before the loads of the elements that it may overwrite: the output may be an
/// input.
template <typename Element>
struct Target {
  using Wide = typename Element::Wide;
  using Raw = typename Element::Raw;
  using Storage = typename Element::Storage;
  char* base;
  bool streaming;

  template <std::size_t kCount>
  [[gnu::always_inline]] void store(std::size_t position, const Wide (&values)[kCount]) const {
    char* address = base + position * sizeof(Storage);
#pragma GCC unroll 4
    for (std::size_t i = 0; i < kCount; ++i, address += sizeof(Raw)) {
      const Raw raw = Element::narrow(values[i]);
      if (streaming) {
        stream_vector(address, raw);
      } else {
        __builtin_memcpy(address, &raw, sizeof raw);
      }
    }
  }
  [[gnu::always_inline]] void store_some(std::size_t position, std::size_t lanes,
                                         Wide value) const {
    const Raw raw = Element::narrow(value);
    __builtin_memcpy(base + position * sizeof(Storage), &raw, lanes * sizeof(Storage));
  }
};
/// Returns the number of elements before the first address at which vectors can be streamed;
/// `count` or more: none can be streamed.
template <typename Element>
RONDE_KERNEL std::size_t elements_to_alignment(const void* address, std::size_t count) {
  constexpr std::size_t kSize = sizeof(typename Element::Storage);
  const auto number = reinterpret_cast<std::uintptr_t>(address);
  const std::size_t bytes = -number % sizeof(typename Element::Raw);
  return bytes % kSize == 0 ? bytes / kSize : count;
}

/// Writes `count` elements of `Output` that `compute` returns, position by position.
template <typename Output, typename Compute>
void walk(Target<Output> target, std::size_t count, Compute compute) {
  constexpr std::size_t kLanesOf = kLanes<Output>;
  constexpr std::size_t kUnroll = 4;
  std::size_t position = 0;
  const auto some = [&](std::size_t lanes) __attribute__((always_inline)) {
    typename Output::Wide result[1];
    compute(result, Partial{position, lanes});
    target.store_some(position, lanes, result[0]);
    position += lanes;
  };
  if (target.streaming) {
    const std::size_t head = elements_to_alignment<Output>(target.base, count);
    target.streaming = head < count;
    if (target.streaming && head > 0) some(head);
  }
  for (; count - position >= kUnroll * kLanesOf; position += kUnroll * kLanesOf) {
    typename Output::Wide result[kUnroll];
    compute(result, Whole<kUnroll>{position});
    target.store(position, result);
  }
  for (; count - position >= kLanesOf; position += kLanesOf) {
    typename Output::Wide result[1];
    compute(result, Whole<1>{position});
    target.store(position, result);
  }
  if (position < count) some(count - position);
  if (target.streaming) fence_streams();
}

template <typename Element, ReduceOp kOp>
void reduce_with(const ReduceTask& task) {
  using Wide = typename Element::Wide;
  const Scale<Wide> prescale = make_scale<Wide>({task.reduction.prescale, 1.0});
  const Scale<Wide> scale = make_scale<Wide>(task.reduction.final);
  const Target<Element> target{static_cast<char*>(task.output), task.streaming};
  bool misses = false;
  for (std::size_t k = 0; k < task.input_count; ++k) misses |= task.inputs[k] == nullptr;
  const bool scales_simply = prescale.factor == 1 && !scale.divides;
  if (task.input_count == 2 && !misses && scales_simply) {
    walk(target, task.count, Pair<Element, kOp>{task.inputs[0], task.inputs[1], scale});
  } else {
    walk(target, task.count,
         Several<Element, kOp>{task.inputs, task.input_count, misses || task.input_count == 0,
                               prescale, scale});
  }
}

/// Bits of integers are combined byte by byte.
template <typename Element, ReduceOp kOp>
void reduce_bits(const ReduceTask& task) {
  using Isa = typename Element::Isa;
  using Bytes = std::conditional_t<Element::kScales, Plain<Isa, std::uint8_t>, Element>;
  if constexpr (!kFloating<typename Element::Wide>) {
    ReduceTask bytes = task;
    bytes.count *= sizeof(typename Element::Storage);
    reduce_with<Bytes, kOp>(bytes);
  }
}

/// `Signed`: the signed type of an integer, whose sums and products have the same bits.
template <typename Element, typename Signed = Element>
void reduce_elements(const ReduceTask& task) {
  switch (task.reduction.op) {
    case ReduceOp::Sum:
    case ReduceOp::Average:
      return reduce_with<Signed, ReduceOp::Sum>(task);
    case ReduceOp::Min:
      return reduce_with<Element, ReduceOp::Min>(task);
    case ReduceOp::Max:
      return reduce_with<Element, ReduceOp::Max>(task);
    case ReduceOp::Product:
      return reduce_with<Signed, ReduceOp::Product>(task);
    case ReduceOp::BitAnd:
      return reduce_bits<Element, ReduceOp::BitAnd>(task);
    case ReduceOp::BitOr:
      return reduce_bits<Element, ReduceOp::BitOr>(task);
    case ReduceOp::BitXor:
      return reduce_bits<Element, ReduceOp::BitXor>(task);
    case ReduceOp::Adasum:
      return;  // not elementwise: see adaptive.h
  }
}

template <typename Isa, typename Integer>
void reduce_integers(const ReduceTask& task) {
  reduce_elements<Plain<Isa, Integer>, Plain<Isa, std::make_signed_t<Integer>>>(task);
}

template <typename Isa>
void reduce(void* output, const void* const* inputs, std::size_t input_count, std::size_t count,
            const Reduction& reduction, Store store) {
  const ReduceTask task{output, inputs, input_count, count, reduction, store == Store::Streaming};
  switch (reduction.dtype) {
    case DataType::U8:
      return reduce_integers<Isa, std::uint8_t>(task);
    case DataType::I8:
      return reduce_integers<Isa, std::int8_t>(task);
    case DataType::I16:
      return reduce_integers<Isa, std::int16_t>(task);
    case DataType::I32:
      return reduce_integers<Isa, std::int32_t>(task);
    case DataType::I64:
      return reduce_integers<Isa, std::int64_t>(task);
    case DataType::U16:
      return reduce_integers<Isa, std::uint16_t>(task);
    case DataType::U32:
      return reduce_integers<Isa, std::uint32_t>(task);
    case DataType::U64:
      return reduce_integers<Isa, std::uint64_t>(task);
    case DataType::F16:
      return reduce_elements<F16<Isa>>(task);
    case DataType::BF16:
      return reduce_elements<BF16<Isa>>(task);
    case DataType::F32:
      return reduce_elements<Plain<Isa, float>>(task);
    case DataType::F64:
      return reduce_elements<Plain<Isa, double>>(task);
    case DataType::Bool:
      return reduce_elements<Truth<Isa>>(task);
    case DataType::C64:
    case DataType::C128:
      return;  // no call has them: see carried_as() in core/src/op/set_info.h
  }
}

template <typename Input, typename Output>
void convert(void* output, const void* input, std::size_t count, const Scaling& scaling,
             Store store) {
  walk(Target<Output>{static_cast<char*>(output), store == Store::Streaming}, count,
       Converted<Input>{input, make_scale<typename Input::Wide>(scaling)});
}

template <typename Isa>
void widen(void* output, const void* input, std::size_t count, const Conversion& conversion,
           Store store) {
  using F32 = Plain<Isa, float>;
  using F64 = Plain<Isa, double>;
  const bool is_f16 = conversion.half == DataType::F16;
  const auto convert_halves =
      conversion.full == DataType::F32
          ? (is_f16 ? convert<F16<Isa>, F32> : convert<BF16<Isa>, F32>)
          : (is_f16 ? convert<AsDoubles<F16<Isa>>, F64> : convert<AsDoubles<BF16<Isa>>, F64>);
  convert_halves(output, input, count, conversion.scaling, store);
}

template <typename Isa>
void narrow(void* output, const void* input, std::size_t count, const Conversion& conversion,
            Store store) {
  using F32 = Plain<Isa, float>;
  using F64 = Plain<Isa, double>;
  const bool is_f16 = conversion.half == DataType::F16;
  const auto convert_to_halves =
      conversion.full == DataType::F32
          ? (is_f16 ? convert<F32, F16<Isa>> : convert<F32, BF16<Isa>>)
          : (is_f16 ? convert<F64, AsDoubles<F16<Isa>>> : convert<F64, AsDoubles<BF16<Isa>>>);
  convert_to_halves(output, input, count, conversion.scaling, store);
}

template <typename Isa>
void copy(void* output, const void* input, std::size_t bytes, Store store) {
  if (bytes == 0) return;  // the pointers may be null
  if (store == Store::Streaming) {
    using Byte = Plain<Isa, std::uint8_t>;
    convert<Byte, Byte>(output, input, bytes, {}, store);
  } else {
    __builtin_memcpy(output, input, bytes);
  }
}

template <typename Isa>
constexpr InstructionSet kInstructionSet{reduce<Isa>, copy<Isa>, widen<Isa>,
                                         narrow<Isa>, products,  blend};

}  // namespace
}  // namespace ronde::kernels
