// SPDX-License-Identifier: Apache-2.0
#include "gpu_exercise.h"

#include <array>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/support/ranks.h"
#include "tests/support/requests.h"

namespace ronde::test {
namespace {

constexpr std::array kDataTypes = {DataType::U8,  DataType::I8,  DataType::I16,  DataType::I32,
                                   DataType::I64, DataType::F16, DataType::BF16, DataType::F32,
                                   DataType::F64, DataType::Bool};

Bytes bytes_of(const TensorValues& values) {
  Bytes bytes(values.bytes());
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

/// Operations that run on the CPU and on the GPU, as a group each, and must give the same bits.
class Twins {
 public:
  Twins(Runtime& runtime, ProgramGpu& gpu) : runtime_(runtime), gpu_(gpu) {}

  int rank() const { return runtime_.topology().rank; }
  int size() const { return runtime_.topology().size; }

  /// `count` elements that are this rank's own.
  TensorValues values(DataType dtype, std::size_t count) {
    TensorValues values(dtype, count);
    const bool is_small = dtype == DataType::U8 || dtype == DataType::I8;
    std::uniform_real_distribution<double> number(is_small ? 0.0 : -9.0, 9.0);
    std::bernoulli_distribution bit(0.5);
    for (std::size_t i = 0; i < count; ++i) {
      const double drawn = dtype == DataType::Bool ? (bit(random_) ? 1.0 : 0.0) : number(random_);
      values.set(i, i % 5 == 1 ? 0.0 : drawn);
    }
    return values;
  }

  /// In place, or into memory of `output_count` elements; none: allocated once the shape is known.
  struct Memory {
    bool in_place = false;
    std::size_t output_count = 0;
    bool allocates = false;
  };

  void add(Request request, const TensorValues& input, const Memory& memory) {
    Twin& twin = *twins_.emplace_back(std::make_unique<Twin>(gpu_, input));
    twin.request = request;
    twin.request.dtype = input.dtype();
    twin.output = TensorValues(input.dtype(), memory.in_place ? 0 : memory.output_count);
    twin.output.fill(1.0);
    twin.gpu_output = GpuTensor(gpu_, bytes_of(twin.output));
    twin.memory = memory;
  }

  /// Runs what was added since.
  void run(const std::string& what) {
    std::vector<Request> cpu;
    std::vector<Request> gpu;
    for (const auto& twin : twins_) {
      cpu.push_back(cpu_request(*twin));
      gpu.push_back(gpu_request(*twin));
    }
    for (const Work& work : start(std::move(cpu))) work.wait();
    for (const Work& work : start(std::move(gpu))) work.wait();
    for (std::size_t i = 0; i < twins_.size(); ++i) compare(*twins_[i], what, i);
    twins_.clear();
  }

 private:
  struct Twin {
    Twin(ProgramGpu& gpu, const TensorValues& values)
        : input(values),
          output(values.dtype(), 0),
          on_gpu(gpu, bytes_of(values)),
          gpu_output(gpu, std::size_t{0}) {}
    Request request;
    Memory memory;
    TensorValues input;
    TensorValues output;
    GpuTensor on_gpu;
    GpuTensor gpu_output;
  };

  std::vector<Work> start(std::vector<Request> requests) {
    if (requests.size() > 1) return runtime_.submit_group(std::move(requests));
    return {runtime_.submit(std::move(requests.front()))};
  }

  static bool reads(const Request& request) {
    return request.kind != Collective::Recv && request.contributes;
  }

  Request cpu_request(Twin& twin) const {
    Request request = twin.request;
    if (reads(request)) request.input = twin.input.data();
    request.output = twin.memory.in_place ? twin.input.data() : twin.output.data();
    if (twin.memory.allocates) {
      request.allocate_output = [&twin](const std::vector<std::int64_t>& shape) {
        twin.output = TensorValues(twin.input.dtype(), element_count(shape));
        return twin.output.data();
      };
      request.output = nullptr;
    }
    return request;
  }

  Request gpu_request(Twin& twin) {
    Request request = twin.request;
    request.device = {.kind = DeviceKind::Cuda, .index = gpu_.context->index()};
    request.stream = gpu_.stream.handle();
    if (reads(request)) request.input = twin.on_gpu.data();
    request.output = twin.memory.in_place ? twin.on_gpu.data() : twin.gpu_output.data();
    if (twin.memory.allocates) {
      request.allocate_output = [this, &twin](const std::vector<std::int64_t>& shape) {
        twin.gpu_output = GpuTensor(gpu_, element_count(shape) * size_of(twin.input.dtype()));
        return twin.gpu_output.data();
      };
      request.output = nullptr;
    }
    return request;
  }

  static std::uint64_t element_count(const std::vector<std::int64_t>& shape) {
    std::uint64_t count = 1;
    for (const std::int64_t extent : shape) count *= static_cast<std::uint64_t>(extent);
    return count;
  }

  void compare(const Twin& twin, const std::string& what, std::size_t number) const {
    const bool in_place = twin.memory.in_place;
    const Bytes expected = bytes_of(in_place ? twin.input : twin.output);
    const Bytes seen = (in_place ? twin.on_gpu : twin.gpu_output).read();
    check(seen == expected, what + ", tensor " + std::to_string(number) + " of " +
                                std::string(to_string(twin.input.dtype())) + " on rank " +
                                std::to_string(rank()));
  }

  Runtime& runtime_;
  ProgramGpu& gpu_;
  std::mt19937 random_{static_cast<unsigned>(runtime_.topology().rank) + 17U};
  std::vector<std::unique_ptr<Twin>> twins_;
};

Request allreduce_of(std::size_t count, ReduceOp op, double prescale, double postscale) {
  Request request;
  request.shape = {static_cast<std::int64_t>(count)};
  request.op = op;
  request.prescale = prescale;
  request.postscale = postscale;
  return request;
}

struct Scales {
  double prescale;
  double postscale;
};

/// Tensors of these sizes as a group: alone, or fused. `absent`: the rank that adds nothing to the
/// second one.
void reduce_group(Twins& twins, DataType dtype, ReduceOp op, const Scales& scales,
                  const std::vector<std::size_t>& counts, int absent = -1) {
  for (std::size_t i = 0; i < counts.size(); ++i) {
    Request request = allreduce_of(counts[i], op, scales.prescale, scales.postscale);
    request.contributes = !(i == 1 && twins.rank() == absent);
    const bool in_place = i % 2 == 0;
    twins.add(std::move(request), twins.values(dtype, counts[i]),
              {.in_place = in_place, .output_count = counts[i]});
  }
  twins.run(std::string(to_string(op)) + " scaled by " + std::to_string(scales.prescale) + " and " +
            std::to_string(scales.postscale) + " of " + std::to_string(counts.size()) +
            " tensors, absent " + std::to_string(absent));
}

}  // namespace

void exercise_allreduces(Runtime& runtime, ProgramGpu& gpu) {
  Twins twins(runtime, gpu);
  for (const DataType dtype : kDataTypes) {
    for (const ReduceOp op : kElementwiseOps) {
      if (dtype == DataType::Bool && op == ReduceOp::Average) continue;
      for (const Scales& scales : {Scales{1.0, 1.0}, Scales{0.5, 3.0}}) {
        reduce_group(twins, dtype, op, scales, {1000});
        reduce_group(twins, dtype, op, scales, {3, 257, 1, 64});
        reduce_group(twins, dtype, op, scales, {3, 257, 16}, twins.size() - 1);
      }
      // Zeros of either sign, and what is infinite as a float.
      for (const double prescale : {-0.5, 1e300}) {
        reduce_group(twins, dtype, op, {prescale, 1.0}, {3, 257}, twins.size() - 1);
      }
    }
  }
}

void exercise_wire_dtypes(Runtime& runtime, ProgramGpu& gpu) {
  Twins twins(runtime, gpu);
  for (const DataType dtype : {DataType::F32, DataType::F64}) {
    for (const DataType wire : {DataType::F16, DataType::BF16}) {
      for (const ReduceOp op : {ReduceOp::Sum, ReduceOp::Average, ReduceOp::Max}) {
        for (const std::size_t count : {std::size_t{5}, std::size_t{3000}}) {
          for (const bool in_place : {false, true}) {
            Request request = allreduce_of(count, op, 0.25, 2.0);
            request.wire_dtype = wire;
            twins.add(std::move(request), twins.values(dtype, count),
                      {.in_place = in_place, .output_count = count});
          }
        }
        twins.run(std::string(to_string(op)) + " as " + std::string(to_string(wire)));
      }
    }
  }
}

void exercise_exchanges(Runtime& runtime, ProgramGpu& gpu) {
  Twins twins(runtime, gpu);
  const auto size = static_cast<std::size_t>(twins.size());
  const auto rank = static_cast<std::size_t>(twins.rank());
  for (const DataType dtype : kDataTypes) {
    for (int root = 0; root < twins.size(); ++root) {
      for (const std::size_t count : {std::size_t{1}, std::size_t{777}}) {
        Request request;
        request.kind = Collective::Broadcast;
        request.root = root;
        request.shape = {static_cast<std::int64_t>(count)};
        twins.add(request, twins.values(dtype, count),
                  {.in_place = count == 1, .output_count = count});
      }
      twins.run("broadcast from " + std::to_string(root));
    }
    for (const std::size_t width : {std::size_t{1}, std::size_t{300}}) {
      Request request;
      request.kind = Collective::Allgather;
      const std::size_t rows = rank * 2;  // none of rank 0
      request.shape = {static_cast<std::int64_t>(rows), static_cast<std::int64_t>(width)};
      twins.add(request, twins.values(dtype, rows * width), {.allocates = true});
      twins.run("allgather");
      request.kind = Collective::Alltoall;
      request.shape[0] = 0;
      for (std::size_t to = 0; to < size; ++to) {
        request.splits.push_back(static_cast<std::int64_t>((rank + 2 * to) % 3));
        request.shape[0] += request.splits.back();
      }
      twins.add(request, twins.values(dtype, static_cast<std::size_t>(request.shape[0]) * width),
                {.allocates = true});
      twins.run("alltoall");
      for (const ReduceOp op : kElementwiseOps) {
        if (dtype == DataType::Bool && op == ReduceOp::Average) continue;
        Request scatter;
        scatter.kind = Collective::Reducescatter;
        scatter.op = op;
        scatter.prescale = 0.5;
        scatter.postscale = 2.0;
        scatter.shape = {static_cast<std::int64_t>(2 * size + 1), static_cast<std::int64_t>(width)};
        twins.add(scatter, twins.values(dtype, (2 * size + 1) * width), {.allocates = true});
        twins.run("reducescatter " + std::string(to_string(op)));
      }
    }
  }
}

void exercise_messages(Runtime& runtime, ProgramGpu& gpu) {
  if (runtime.topology().size < 2) return;
  const int rank = runtime.topology().rank;
  const int size = runtime.topology().size;
  Twins twins(runtime, gpu);
  const TensorValues sent = twins.values(DataType::F32, 5000);
  GpuTensor input(gpu, bytes_of(sent));
  GpuTensor output(gpu, sent.bytes());
  TensorValues received(DataType::F32, 5000);
  const auto message = [&](Collective kind, int peer, bool on_gpu) {
    Request request;
    request.kind = kind;
    request.shape = {5000};
    request.peer = peer;
    request.tag = on_gpu ? 1 : 0;
    if (on_gpu) {
      request.device = {.kind = DeviceKind::Cuda, .index = gpu.context->index()};
      request.stream = gpu.stream.handle();
    }
    if (kind == Collective::Send) request.input = on_gpu ? input.data() : sent.data();
    if (kind == Collective::Recv) request.output = on_gpu ? output.data() : received.data();
    return runtime.submit(std::move(request));
  };
  std::vector<Work> works;
  for (const bool on_gpu : {false, true}) {
    works.push_back(message(Collective::Send, (rank + 1) % size, on_gpu));
    works.push_back(message(Collective::Recv, (rank + size - 1) % size, on_gpu));
  }
  for (const Work& work : works) work.wait();
  check(output.read() == bytes_of(received), "a message on rank " + std::to_string(rank));
}

void exercise_sizes(Runtime& runtime, ProgramGpu& gpu) {
  Twins twins(runtime, gpu);
  const std::size_t fused = runtime.config().fusion_bytes / sizeof(float);
  const std::array<std::size_t, 8> counts = {1,    7,    1023,      1024,
                                             1025, 4096, fused + 1, 3 * fused + 7};
  for (const std::size_t count : counts) {
    reduce_group(twins, DataType::F32, ReduceOp::Sum, {1.0, 1.0}, {count});
    reduce_group(twins, DataType::BF16, ReduceOp::Average, {1.0, 1.0}, {count});
    reduce_group(twins, DataType::F16, ReduceOp::Product, {0.5, 1.0}, {count, 2 * count + 1}, 0);
  }
}

}  // namespace ronde::test
