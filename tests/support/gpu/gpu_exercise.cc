// SPDX-License-Identifier: Apache-2.0
#include "tests/support/gpu/gpu_exercise.h"

#include <array>
#include <cmath>
#include <cstring>
#include <deque>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "core/src/op/op_spec.h"
#include "tests/support/harness/sanitizers.h"
#include "tests/support/oracle/oracle.h"
#include "tests/support/ranks/ranks.h"
#include "tests/support/ranks/requests.h"

namespace ronde::test {
namespace {

const std::vector<DataType> kDataTypes =
    kIsSanitized ? std::vector{DataType::I8, DataType::I64, DataType::F16, DataType::F32}
                 : kGpuDataTypes;

/// Operations that run on the CPU and on the GPU, as a group each, and must give the same bits. A
/// few groups are in flight at a time.
class Twins {
 public:
  Twins(Runtime& runtime, ProgramGpu& gpu, std::size_t most_in_flight = 4)
      : runtime_(runtime), gpu_(gpu), most_in_flight_(most_in_flight) {}

  int rank() const { return runtime_.topology().rank; }
  int size() const { return runtime_.topology().size; }

  /// `count` elements that are this rank's own. `has_odd`: some of them are no finite numbers.
  TensorValues values(DataType dtype, std::size_t count, bool has_odd = false) {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    constexpr std::array kOdd = {std::numeric_limits<double>::quiet_NaN(), kInfinity, -kInfinity,
                                 6e-8};
    TensorValues values(dtype, count);
    const bool is_small = dtype == DataType::U8 || dtype == DataType::I8;
    std::uniform_real_distribution<double> number(is_small ? 0.0 : -kLargest, kLargest);
    std::bernoulli_distribution bit(0.5);
    for (std::size_t i = 0; i < count; ++i) {
      double drawn = dtype == DataType::Bool ? (bit(random_) ? 1.0 : 0.0) : number(random_);
      if (i % 5 == 1) drawn = 0.0;
      if (has_odd && is_floating(dtype) && i % 7 == 2) drawn = kOdd[random_() % kOdd.size()];
      values.set(i, drawn);
    }
    return values;
  }

  /// Where the result goes; Made: to memory that is allocated once its shape is known, which this
  /// rank has not on the GPU where it is Lacking.
  enum class Output { InPlace, Apart, Made, Lacking };

  void add(Request request, const TensorValues& input, Output place) {
    Twin& twin = *twins_.emplace_back(std::make_shared<Twin>(gpu_, input));
    twin.request = std::move(request);
    twin.request.dtype = input.dtype();
    twin.request.keep_alive = twins_.back();
    twin.output = TensorValues(input.dtype(), place == Output::Apart ? input.count() : 0);
    twin.output.fill(1.0);
    twin.gpu_output = GpuTensor(gpu_, bytes_of(twin.output));
    twin.place = place;
  }

  /// Starts what was added since.
  void run(const std::string& what) {
    std::vector<Request> cpu;
    std::vector<Request> gpu;
    for (const auto& twin : twins_) {
      cpu.push_back(request_of(*twin, false));
      gpu.push_back(request_of(*twin, true));
      twin->request.keep_alive = nullptr;  // which would keep itself
    }
    Group group{what, std::exchange(twins_, {}), start(std::move(cpu))};
    for (Work& work : start(std::move(gpu))) group.works.push_back(std::move(work));
    in_flight_.push_back(std::move(group));
    if (in_flight_.size() > most_in_flight_) compare_oldest();
  }

  /// Waits for all that was started.
  void finish() {
    while (!in_flight_.empty()) compare_oldest();
  }

 private:
  static constexpr double kLargest = 9.0;

  struct Twin {
    Twin(ProgramGpu& gpu, const TensorValues& values)
        : input(values),
          output(values.dtype(), 0),
          on_gpu(gpu, bytes_of(values)),
          gpu_output(gpu, std::size_t{0}) {}
    bool is_in_place() const { return place == Output::InPlace; }

    Request request;
    Output place = Output::Apart;
    TensorValues input;
    TensorValues output;
    GpuTensor on_gpu;
    GpuTensor gpu_output;
  };
  struct Group {
    std::string what;
    std::vector<std::shared_ptr<Twin>> twins;
    std::vector<Work> works;
  };

  std::vector<Work> start(std::vector<Request> requests) {
    if (requests.size() > 1) return runtime_.submit_group(std::move(requests));
    return {runtime_.submit(std::move(requests.front()))};
  }

  bool reads(const Twin& twin) const {
    const Request& request = twin.request;
    const bool only_receives = request.kind == Collective::Broadcast && request.root != rank();
    return request.kind != Collective::Recv && request.contributes &&
           (twin.is_in_place() || !only_receives);
  }

  Request request_of(Twin& twin, bool on_gpu) {
    Request request = twin.request;
    if (on_gpu) gpu_.place(request);
    // On the GPU a tensor without elements has an address all the same.
    const auto address_of = [on_gpu](const GpuTensor& tensor, TensorValues& values) {
      return on_gpu && values.count() > 0 ? tensor.data() : values.data();
    };
    if (reads(twin)) request.input = address_of(twin.on_gpu, twin.input);
    if (request.kind == Collective::Send) return request;
    if (twin.place == Output::Made || twin.place == Output::Lacking) {
      request.allocate_output = [this, &twin, on_gpu](const std::vector<std::int64_t>& shape) {
        const std::uint64_t count = element_count(shape);
        if (!on_gpu) return (twin.output = TensorValues(twin.input.dtype(), count)).data();
        if (twin.place == Output::Lacking) throw std::bad_alloc();
        twin.gpu_output = GpuTensor(gpu_, count * size_of(twin.input.dtype()));
        return twin.gpu_output.data();
      };
      return request;
    }
    request.output = twin.is_in_place() ? address_of(twin.on_gpu, twin.input)
                                        : address_of(twin.gpu_output, twin.output);
    return request;
  }

  void compare_oldest() {
    const Group group = std::move(in_flight_.front());
    in_flight_.pop_front();
    if (group.twins.front()->place == Output::Lacking) {
      group.works.front().wait();
      return check_contains(text_of<OutOfMemoryError>([&] { group.works.back().wait(); }),
                            "rank " + std::to_string(rank()) + " has no memory");
    }
    for (const Work& work : group.works) work.wait();
    for (std::size_t i = 0; i < group.twins.size(); ++i) compare(*group.twins[i], group.what, i);
  }

  void compare(const Twin& twin, const std::string& what, std::size_t number) const {
    const std::string which = what + ", tensor " + std::to_string(number) + " of " +
                              std::string(to_string(twin.input.dtype())) + " on rank " +
                              std::to_string(rank());
    const TensorValues& expected = twin.is_in_place() ? twin.input : twin.output;
    const Bytes seen = (twin.is_in_place() ? twin.on_gpu : twin.gpu_output).read();
    check(seen == bytes_of(expected) ||
              (is_in_any_order(twin.request) && is_close(seen, expected, twin.request)),
          which);
    check(twin.is_in_place() || twin.on_gpu.read() == bytes_of(twin.input),
          "the input of " + which);
  }

  /// NCCL sums and multiplies in an order and with roundings of its own.
  bool is_in_any_order(const Request& request) const {
    const bool is_reduction =
        request.kind == Collective::Allreduce || request.kind == Collective::Reducescatter;
    return is_reduction && is_floating(request.dtype) && request.op != ReduceOp::Min &&
           request.op != ReduceOp::Max && !gpu_.is_exact &&
           runtime_.backend_name(DeviceKind::Cuda) == "nccl";
  }

  bool is_close(const Bytes& seen, const TensorValues& expected, const Request& request) const {
    TensorValues values(expected.dtype(), expected.count());
    if (!seen.empty()) std::memcpy(values.data(), seen.data(), seen.size());
    const DataType type = request.wire_dtype.value_or(expected.dtype());
    const int digits = type == DataType::F16 ? 10 : type == DataType::BF16 ? 7 : 23;
    const double epsilon = type == DataType::F64 ? 0x1p-52 : std::ldexp(1.0, -digits);
    const double largest_sum = size() * kLargest * std::abs(request.prescale * request.postscale);
    for (std::size_t i = 0; i < expected.count(); ++i) {
      const double right = expected.get(i);
      const double value = values.get(i);
      const double largest = request.op == ReduceOp::Product ? std::abs(right) : largest_sum;
      const bool is_equal = value == right || (std::isnan(value) && std::isnan(right));
      if (!is_equal && !(std::abs(value - right) <= size() * epsilon * largest)) return false;
    }
    return true;
  }

  Runtime& runtime_;
  ProgramGpu& gpu_;
  const std::size_t most_in_flight_;
  std::mt19937 random_{static_cast<unsigned>(runtime_.topology().rank) + 17U};
  std::vector<std::shared_ptr<Twin>> twins_;
  std::deque<Group> in_flight_;
};

using Output = Twins::Output;

Request allreduce_of(std::size_t count, ReduceOp op, double prescale, double postscale) {
  Request request;
  request.shape = {static_cast<std::int64_t>(count)};
  request.op = op;
  request.prescale = prescale;
  request.postscale = postscale;
  return request;
}

/// Where a backend could lose NaN, or round too early.
bool has_odd(DataType dtype, ReduceOp op) {
  return is_half(dtype) || op == ReduceOp::Min || op == ReduceOp::Max;
}

/// Tensors of these sizes as a group: alone, or fused. `absent`: the rank that adds nothing to the
/// second one.
void reduce_group(Twins& twins, DataType dtype, ReduceOp op, double prescale, double postscale,
                  const std::vector<std::size_t>& counts, int absent = -1) {
  for (std::size_t i = 0; i < counts.size(); ++i) {
    Request request = allreduce_of(counts[i], op, prescale, postscale);
    request.contributes = !(i == 1 && twins.rank() == absent);
    twins.add(std::move(request), twins.values(dtype, counts[i], has_odd(dtype, op)),
              i % 2 == 0 ? Output::InPlace : Output::Apart);
  }
  twins.run(std::string(to_string(op)) + " scaled by " + std::to_string(prescale) + " and " +
            std::to_string(postscale) + " of " + std::to_string(counts.size()) +
            " tensors, absent " + std::to_string(absent));
}

/// By every op; where it is scaled, one rank adds nothing.
void exercise_reducescatters(Twins& twins, DataType dtype, std::size_t rows, std::size_t width,
                             bool is_scaled) {
  for (const ReduceOp op : kElementwiseOps) {
    if (dtype == DataType::Bool && op == ReduceOp::Average) continue;
    if (is_scaled && !can_have_factors(dtype, op)) continue;
    Request request = allreduce_of(rows, op, is_scaled ? 0.5 : 1.0, is_scaled ? 2.0 : 1.0);
    request.kind = Collective::Reducescatter;
    request.contributes = !is_scaled || twins.size() == 1 || twins.rank() != 0;
    request.shape.push_back(static_cast<std::int64_t>(width));
    twins.add(std::move(request), twins.values(dtype, rows * width, has_odd(dtype, op)),
              Output::Made);
    twins.run("reducescatter " + std::string(to_string(op)));
  }
}

void exercise_broadcasts(Twins& twins, DataType dtype) {
  for (const bool as_group : {false, true}) {
    for (int root = 0; root < twins.size(); ++root) {
      for (const std::size_t count : {1, 777, 5000}) {
        Request request = allreduce_of(count, ReduceOp::Sum, 1.0, 1.0);
        request.kind = Collective::Broadcast;
        request.root = root;
        for (const Output place : {Output::Apart, Output::InPlace}) {
          twins.add(request, twins.values(dtype, count), place);
          if (!as_group) twins.run("broadcast from " + std::to_string(root));
        }
      }
    }
  }
  twins.run("broadcasts from all roots");
}

}  // namespace

void exercise_allreduces(Runtime& runtime, ProgramGpu& gpu) {
  Twins twins(runtime, gpu);
  for (const DataType dtype : kDataTypes) {
    for (const ReduceOp op : kElementwiseOps) {
      if (dtype == DataType::Bool && op == ReduceOp::Average) continue;
      for (const auto& [before, after] : {std::pair{1.0, 1.0}, {0.5, 3.0}}) {
        if (before != 1.0 && !can_have_factors(dtype, op)) continue;
        reduce_group(twins, dtype, op, before, after, {1000});
        reduce_group(twins, dtype, op, before, after, {3, 257, 0, 1, 64});
        reduce_group(twins, dtype, op, before, after, {3, 257, 16}, twins.size() - 1);
      }
      // Zeros of either sign, and what is infinite as a float.
      for (const double prescale : {-0.5, 1e300}) {
        if (!can_have_factors(dtype, op)) continue;
        reduce_group(twins, dtype, op, prescale, 1.0, {3, 257}, twins.size() - 1);
      }
    }
  }
  twins.finish();
}

void exercise_wire_dtypes(Runtime& runtime, ProgramGpu& gpu) {
  Twins twins(runtime, gpu);
  for (const DataType dtype : {DataType::F32, DataType::F64}) {
    for (const DataType wire : {DataType::F16, DataType::BF16}) {
      for (const ReduceOp op : {ReduceOp::Sum, ReduceOp::Average, ReduceOp::Max}) {
        for (const std::size_t count : {std::size_t{5}, std::size_t{3000}}) {
          for (const Output place : {Output::Apart, Output::InPlace}) {
            Request request = allreduce_of(count, op, 0.25, 2.0);
            request.wire_dtype = wire;
            twins.add(std::move(request), twins.values(dtype, count, true), place);
          }
        }
        twins.run(std::string(to_string(op)) + " as " + std::string(to_string(wire)));
      }
    }
  }
  twins.finish();
}

void exercise_exchanges(Runtime& runtime, ProgramGpu& gpu) {
  Twins twins(runtime, gpu);
  const auto size = static_cast<std::size_t>(twins.size());
  const auto rank = static_cast<std::size_t>(twins.rank());
  for (const DataType dtype : kDataTypes) {
    exercise_broadcasts(twins, dtype);
    for (const std::size_t width : {1, 300}) {
      for (const bool is_even : {false, true}) {
        Request request;
        request.kind = Collective::Allgather;
        const std::size_t rows = is_even ? 2 : rank * 2;  // or none of rank 0
        request.shape = {static_cast<std::int64_t>(rows), static_cast<std::int64_t>(width)};
        twins.add(request, twins.values(dtype, rows * width), Output::Made);
        twins.run("allgather");
        request.kind = Collective::Alltoall;
        request.shape[0] = 0;
        for (std::size_t to = 0; to < size; ++to) {
          request.splits.push_back(is_even ? 2 : static_cast<std::int64_t>((rank + 2 * to) % 3));
          request.shape[0] += request.splits.back();
        }
        twins.add(request, twins.values(dtype, static_cast<std::size_t>(request.shape[0]) * width),
                  Output::Made);
        twins.run("alltoall");
        exercise_reducescatters(twins, dtype, is_even ? 2 * size : 2 * size + 1, width,
                                (width == 1) == is_even);
      }
    }
  }
  twins.finish();
}

void exercise_messages(Runtime& runtime, ProgramGpu& gpu) {
  Twins twins(runtime, gpu, 1000);  // which rank comes first nobody knows
  for (const DataType dtype : kDataTypes) {
    for (const std::size_t count : {1, 5000}) {
      for (int peer = 0; peer < twins.size(); ++peer) {
        if (peer == twins.rank()) continue;
        for (const Collective kind : {Collective::Send, Collective::Recv}) {
          Request request = allreduce_of(count, ReduceOp::Sum, 1.0, 1.0);
          request.kind = kind;
          request.peer = peer;
          twins.add(std::move(request), twins.values(dtype, count), Output::Apart);
          twins.run("a message between rank " + std::to_string(peer));
        }
      }
    }
  }
  twins.finish();
}

void exercise_sizes(Runtime& runtime, ProgramGpu& gpu) {
  Twins twins(runtime, gpu);
  const std::size_t fused = runtime.config().fusion_bytes / sizeof(float);
  const std::array<std::size_t, 8> counts = {1,    7,    1023,      1024,
                                             1025, 4096, fused + 1, 3 * fused + 7};
  for (const std::size_t count : counts) {
    reduce_group(twins, DataType::F32, ReduceOp::Sum, 1.0, 1.0, {count});
    reduce_group(twins, DataType::BF16, ReduceOp::Average, 1.0, 1.0, {count});
    reduce_group(twins, DataType::F16, ReduceOp::Product, 0.5, 1.0, {count, 2 * count + 1}, 0);
  }
  twins.finish();
}

void exercise_missing_results(Runtime& runtime, ProgramGpu& gpu) {
  Twins twins(runtime, gpu);
  for (const std::size_t rows : {3, 10'000}) {
    for (const Collective kind :
         {Collective::Allgather, Collective::Alltoall, Collective::Reducescatter}) {
      const std::size_t count = static_cast<std::size_t>(twins.size()) * rows;
      Request request = allreduce_of(count, ReduceOp::Sum, 1.0, 1.0);
      request.kind = kind;
      twins.add(std::move(request), twins.values(DataType::F32, count),
                twins.rank() == 1 ? Output::Lacking : Output::Made);
      twins.run(std::string(to_string(kind)) + " without memory on rank 1");
    }
  }
  twins.finish();
}

}  // namespace ronde::test
