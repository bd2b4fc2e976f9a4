// SPDX-License-Identifier: Apache-2.0
#include "elementwise.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "half.h"

namespace ronde {
namespace {

// Element types: the storage, and how it becomes the number that is computed with.
template <typename Number>
struct Plain {
  using Storage = Number;
  using Wide = Number;
  static Wide widen(Storage value) { return value; }
  static Storage narrow(Wide value) { return value; }
};
struct Half {
  using Storage = std::uint16_t;
  using Wide = float;
  static Wide widen(Storage value) { return f16_to_f32(value); }
  static Storage narrow(Wide value) { return f32_to_f16(value); }
};
struct BFloat {
  using Storage = std::uint16_t;
  using Wide = float;
  static Wide widen(Storage value) { return bf16_to_f32(value); }
  static Storage narrow(Wide value) { return f32_to_bf16(value); }
};
struct Truth {
  using Storage = std::uint8_t;
  using Wide = std::uint8_t;
  static Wide widen(Storage value) { return value != 0 ? 1 : 0; }
  static Storage narrow(Wide value) { return value; }
};

/// Calls `visit` with the element type of `dtype`.
template <typename Visit>
void with_element(DataType dtype, Visit visit) {
  switch (dtype) {
    case DataType::U8:
      return visit(Plain<std::uint8_t>{});
    case DataType::I8:
      return visit(Plain<std::int8_t>{});
    case DataType::I16:
      return visit(Plain<std::int16_t>{});
    case DataType::I32:
      return visit(Plain<std::int32_t>{});
    case DataType::I64:
      return visit(Plain<std::int64_t>{});
    case DataType::F16:
      return visit(Half{});
    case DataType::BF16:
      return visit(BFloat{});
    case DataType::F32:
      return visit(Plain<float>{});
    case DataType::F64:
      return visit(Plain<double>{});
    case DataType::Bool:
      return visit(Truth{});
  }
}

template <typename Number>
Number scaled(Number value, Scaling scaling) {
  if constexpr (std::is_floating_point_v<Number>) {
    return value * static_cast<Number>(scaling.factor) / static_cast<Number>(scaling.divisor);
  } else {
    using Limits = std::numeric_limits<Number>;
    const double product =
        std::trunc(static_cast<double>(value) * scaling.factor / scaling.divisor);
    // The largest i64 is no double: compare with 2^63, which is.
    const double above = std::ldexp(1.0, Limits::digits);
    if (std::isnan(product)) return Number{0};  // zero times an infinite scale
    if (product >= above) return Limits::max();
    if (product < static_cast<double>(Limits::min())) return Limits::min();
    return static_cast<Number>(product);
  }
}

template <typename Number>
Number canonical(Number value) {
  if constexpr (std::is_floating_point_v<Number>) {
    return value == value ? value : std::numeric_limits<Number>::quiet_NaN();
  } else {
    return value;
  }
}

template <typename Number>
Number neutral(ReduceOp op) {
  using Limits = std::numeric_limits<Number>;
  switch (op) {
    case ReduceOp::Product:
      return Number{1};
    case ReduceOp::Min:
      return Limits::has_infinity ? Limits::infinity() : Limits::max();
    case ReduceOp::Max:
      return Limits::has_infinity ? static_cast<Number>(-Limits::infinity()) : Limits::lowest();
    case ReduceOp::Sum:
    case ReduceOp::Average:
      break;
  }
  return Number{0};
}

template <typename Output, typename Input, typename Map>
void transform(void* output, const void* input, std::size_t count, Map map) {
  auto* out = static_cast<Output*>(output);
  const auto* in = static_cast<const Input*>(input);
  for (std::size_t i = 0; i < count; ++i) out[i] = map(in[i]);
}

}  // namespace

void pack_elements(void* output, const void* input, std::size_t count, DataType dtype,
                   Scaling scaling, bool widen_halves) {
  if (count == 0) return;
  const bool widens = wire_dtype(dtype, widen_halves) != dtype;
  if (dtype != DataType::Bool && scaling.is_identity() && !widens) {
    std::memcpy(output, input, count * size_of(dtype));
    return;
  }
  with_element(dtype, [&]<typename Element>(Element) {
    using Storage = typename Element::Storage;
    using Wide = typename Element::Wide;
    const auto wide = [scaling](Storage value) {
      const Wide number = Element::widen(value);
      return std::is_same_v<Element, Truth> || scaling.is_identity() ? number
                                                                     : scaled(number, scaling);
    };
    if (widens) {
      transform<Wide, Storage>(output, input, count, wide);
    } else {
      transform<Storage, Storage>(output, input, count,
                                  [&](Storage value) { return Element::narrow(wide(value)); });
    }
  });
}

void unpack_elements(void* output, const void* input, std::size_t count, DataType dtype,
                     Scaling scaling, bool widen_halves) {
  if (count == 0) return;
  if (!is_floating(dtype) && (scaling.is_identity() || dtype == DataType::Bool)) {
    std::memcpy(output, input, count * size_of(dtype));
    return;
  }
  const bool widens = wire_dtype(dtype, widen_halves) != dtype;
  with_element(dtype, [&]<typename Element>(Element) {
    using Storage = typename Element::Storage;
    using Wide = typename Element::Wide;
    const auto finish = [scaling](Wide number) {
      return Element::narrow(canonical(scaling.is_identity() ? number : scaled(number, scaling)));
    };
    if (widens) {
      transform<Storage, Wide>(output, input, count, finish);
    } else {
      transform<Storage, Storage>(output, input, count,
                                  [&](Storage value) { return finish(Element::widen(value)); });
    }
  });
}

void fill_neutral(void* output, std::size_t count, DataType dtype, ReduceOp op, bool widen_halves) {
  const bool widens = wire_dtype(dtype, widen_halves) != dtype;
  with_element(dtype, [&]<typename Element>(Element) {
    using Storage = typename Element::Storage;
    using Wide = typename Element::Wide;
    Wide value = neutral<Wide>(op);
    if constexpr (std::is_same_v<Element, Truth>) {
      value = op == ReduceOp::Min || op == ReduceOp::Product ? 1 : 0;
    }
    if (widens) {
      std::fill_n(static_cast<Wide*>(output), count, value);
    } else {
      std::fill_n(static_cast<Storage*>(output), count, Element::narrow(value));
    }
  });
}

}  // namespace ronde
