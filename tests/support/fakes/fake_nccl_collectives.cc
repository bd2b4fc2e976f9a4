// SPDX-License-Identifier: Apache-2.0
// What NCCL's calls do once all ranks have come: moved and reduced on the CPU.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "tests/support/fakes/fake_nccl_state.h"
#include "tests/support/half.h"

namespace ronde::test::fake_nccl {
namespace {

struct F16 {
  std::uint16_t bits;
  operator float() const { return f16_to_f32(bits); }
  static F16 of(float value) { return {f32_to_f16(value)}; }
};
struct Bf16 {
  std::uint16_t bits;
  operator float() const { return bf16_to_f32(bits); }
  static Bf16 of(float value) { return {f32_to_bf16(value)}; }
};

template <typename Number>
Number combined(Number a, Number b, ReductionNumber op) {
  if constexpr (std::is_class_v<Number>) {
    return Number::of(combined<float>(a, b, op));
  } else {
    using Wide = std::conditional_t<std::is_floating_point_v<Number>, Number, std::uint64_t>;
    const auto x = static_cast<Wide>(a);
    const auto y = static_cast<Wide>(b);
    if (op == kSum) return static_cast<Number>(x + y);
    if (op == kProduct) return static_cast<Number>(x * y);
    // As on the GPU, the number is taken where the other one is NaN.
    if constexpr (std::is_floating_point_v<Number>) {
      if (std::isnan(a)) return b;
    }
    return (op == kMax ? a < b : b < a) ? b : a;
  }
}

/// Both are of the type, and so is the result.
template <typename Number>
Number scaled(Number value, double factor) {
  if constexpr (std::is_class_v<Number>) {
    return Number::of(value * static_cast<float>(Number::of(static_cast<float>(factor))));
  } else {
    return static_cast<Number>(value * static_cast<Number>(factor));
  }
}

/// Calls `visit` with a zero of the type.
template <typename Visit>
void with_type(DataTypeNumber type, Visit visit) {
  if (type == kInt8) visit(std::int8_t{});
  if (type == kUint8) visit(std::uint8_t{});
  if (type == kInt32) visit(std::int32_t{});
  if (type == kInt64) visit(std::int64_t{});
  if (type == kFloat16) visit(F16{});
  if (type == kBfloat16) visit(Bf16{});
  if (type == kFloat32) visit(float{});
  if (type == kFloat64) visit(double{});
}

std::size_t width_of(DataTypeNumber type) {
  std::size_t width = 0;
  with_type(type, [&](auto zero) { width = sizeof zero; });
  return width;
}

/// `count` elements from `first` on of what all ranks bring, as bytes.
std::vector<char> reduced(const Calls& calls, std::size_t first, std::size_t count) {
  const Call& any = *calls.front();
  std::vector<char> result(count * width_of(any.type));
  with_type(any.type, [&](auto zero) {
    using Number = decltype(zero);
    const auto bring = [&](std::size_t rank, std::size_t i) {
      Number value;
      std::memcpy(&value, static_cast<const char*>(calls[rank]->input) + i * sizeof value,
                  sizeof value);
      return any.factor != 1.0 ? scaled(value, any.factor) : value;
    };
    for (std::size_t i = 0; i < count; ++i) {
      // A ring begins somewhere else for each part.
      const std::size_t begin = (first + i + 1) % calls.size();
      Number value = bring(begin, first + i);
      for (std::size_t k = 1; k < calls.size(); ++k) {
        value = combined(value, bring((begin + k) % calls.size(), first + i), any.op);
      }
      std::memcpy(result.data() + i * sizeof value, &value, sizeof value);
    }
  });
  return result;
}

void put(const std::vector<char>& bytes, void* output) {
  if (!bytes.empty()) std::memcpy(output, bytes.data(), bytes.size());
}

std::vector<char> taken(const Call& call) {
  const auto* const input = static_cast<const char*>(call.input);
  return std::vector<char>(input, input + call.count * width_of(call.type));
}

bool fits(const Call& a, const Call& b) {
  return a.kind == b.kind && a.count == b.count && a.type == b.type && a.op == b.op &&
         a.other == b.other && a.factor == b.factor;
}

}  // namespace

double number_at(const void* value, DataTypeNumber type) {
  double number = 0.0;
  with_type(type, [&](auto element) {
    std::memcpy(&element, value, sizeof element);
    number = static_cast<double>(element);
  });
  return number;
}

void run_collective(const Calls& calls, Misuses& misuses) {
  const Call& first = *calls.front();
  if (!std::all_of(calls.begin(), calls.end(),
                   [&](const auto& call) { return fits(first, *call); })) {
    return misuses.add("the ranks' calls do not fit each other");
  }
  // NCCL chooses a kernel by the windows that a rank's own memory is in.
  if (!std::all_of(calls.begin(), calls.end(), [&](const auto& call) {
        return call->input_in_window == first.input_in_window &&
               call->output_in_window == first.output_in_window;
      })) {
    misuses.add("buffers are not at the same place of every rank's window");
  }
  std::vector<char> gathered;
  for (const auto& call : calls) {
    if (first.kind != Kind::AllGather) break;
    const std::vector<char> more = taken(*call);
    gathered.insert(gathered.end(), more.begin(), more.end());
  }
  // All is read before anything is written: some of it may be in place.
  std::vector<std::vector<char>> results;
  for (std::size_t rank = 0; rank < calls.size(); ++rank) {
    if (first.kind == Kind::ReduceScatter) {
      results.push_back(reduced(calls, rank * first.count, first.count));
    } else if (first.kind == Kind::Broadcast) {
      results.push_back(taken(*calls[static_cast<std::size_t>(first.other)]));
    } else if (first.kind == Kind::AllGather) {
      results.push_back(gathered);
    } else {
      results.push_back(reduced(calls, 0, first.count));
    }
  }
  for (std::size_t rank = 0; rank < calls.size(); ++rank) put(results[rank], calls[rank]->output);
}

void Ranks::arrive(int rank, const std::shared_ptr<Call>& call) {
  if (is_torn) return;
  if (call->kind == Kind::Send || call->kind == Kind::Recv) {
    const bool is_sent = call->kind == Kind::Send;
    const std::pair<int, int> way =
        is_sent ? std::pair(rank, call->other) : std::pair(call->other, rank);
    (is_sent ? sends : receives)[way].push_back(call);
    auto& sent = sends[way];
    auto& received = receives[way];
    if (sent.empty() || received.empty()) return;
    const auto from = sent.front();
    const auto to = received.front();
    sent.pop_front();
    received.pop_front();
    if (from->count != to->count || from->type != to->type) {
      misuses.add("a send and its receive do not fit each other");
    } else {
      put(taken(*from), to->output);
    }
    from->is_done = to->is_done = true;
    return;
  }
  const std::uint64_t number = collectives_of[rank]++;
  auto& met = collectives[number];
  met[rank] = call;
  if (static_cast<int>(met.size()) < size) return;
  Calls all;
  for (const auto& [other, of_other] : met) all.push_back(of_other);
  run_collective(all, misuses);
  for (const auto& each : all) each->is_done = true;
  collectives.erase(number);
}

}  // namespace ronde::test::fake_nccl
