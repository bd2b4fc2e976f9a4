// SPDX-License-Identifier: Apache-2.0
#include "nccl_jobs.h"

#include <cmath>
#include <cstring>
#include <deque>
#include <limits>
#include <string>

#include "nccl_ranks.h"

namespace ronde::test {
namespace {

std::string text_of(const Job& job) {
  return std::string(to_string(job.kind)) + " of " + std::to_string(job.count) + " " +
         std::string(to_string(job.dtype)) +
         (job.wire ? " as " + std::string(to_string(*job.wire)) : "") + ", " +
         std::string(to_string(job.op)) + ", scales " + std::to_string(job.prescale) + " and " +
         std::to_string(job.postscale) +
         (job.absent >= 0 ? ", without rank " + std::to_string(job.absent) : "");
}

bool is_extreme(ReduceOp op) {
  return op == ReduceOp::Min || op == ReduceOp::Max;
}

/// Whether the ranks' order matters, and NCCL does not keep it.
bool depends_on_order(const Job& job) {
  const bool is_full = job.dtype == DataType::F32 || job.dtype == DataType::F64;
  return is_full && !job.wire && !is_extreme(job.op);
}

/// Numbers with all their bits, zeros of both signs, and what is no number where NCCL has no part
/// in it: of what it makes of these, and of an infinite difference, only the sign and payload of
/// NaN differ.
double wild(const Job& job, int rank, std::size_t i) {
  const auto bits = (static_cast<std::uint32_t>(i) * 64 + static_cast<std::uint32_t>(rank) + 1) *
                    std::uint32_t{2654435761};
  const double number = static_cast<std::int32_t>(bits) * 0x1p-31;  // [-1, 1)
  if (!is_floating(job.dtype)) {
    const double most = job.op == ReduceOp::Product ? 3 : 100;
    return std::trunc(job.dtype == DataType::U8 ? std::abs(number) * most : number * most);
  }
  if (i % 11 == 0) return (bits >> 8) % 2 == 0 ? 0.0 : -0.0;
  if (!depends_on_order(job) && i % 13 == 1) {
    const double odd[] = {std::numeric_limits<double>::quiet_NaN(),
                          std::numeric_limits<double>::infinity(),
                          -std::numeric_limits<double>::infinity(), 6e-8};
    return odd[(bits >> 8) % 4];
  }
  return job.op == ReduceOp::Product ? 1.0 + number / 3 : 100 * number;
}

double simple(const Job& job, int rank, std::size_t i) {
  return brought({job.kind, job.dtype, job.op, 1}, rank, i);
}

using Values = double (*)(const Job& job, int rank, std::size_t i);

Bytes bytes_of(const TensorValues& values) {
  Bytes bytes(values.bytes());
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

/// A job on the CPU, or on a GPU.
class InFlight {
 public:
  InFlight(const Job& job, ProgramGpu* gpu, const std::string& name, Values values,
           Runtime& runtime)
      : job_(job), gpu_(gpu), buffers_(job.dtype, job.count) {
    const int rank = runtime.topology().rank;
    for (std::size_t i = 0; i < job.count; ++i) buffers_.input.set(i, values(job, rank, i));
    const std::size_t size = static_cast<std::size_t>(runtime.topology().size);
    const std::size_t own = static_cast<std::size_t>(rank);
    if (job.kind == Collective::Reducescatter) {
      begin_ = own * (job.count / size) + std::min(own, job.count % size);
      buffers_.output =
          TensorValues(job.dtype, job.count / size + (own < job.count % size ? 1 : 0));
    }
    Request request = request_on({}, job.kind, name, buffers_);
    if (gpu_ != nullptr) move_to_gpu(request);
    request.op = job.op;
    request.wire_dtype = job.wire;
    request.prescale = job.prescale;
    request.postscale = job.postscale;
    request.contributes = rank != job.absent;
    work_ = runtime.submit(request);
  }

  const TensorValues& result() {
    work_.wait();
    if (on_gpu_.size() == 2) {
      const Bytes bytes = on_gpu_.back().read();
      if (!bytes.empty()) std::memcpy(buffers_.output.data(), bytes.data(), bytes.size());
    }
    return buffers_.output;
  }
  /// Which element of the whole the result begins with.
  std::size_t begin() const { return begin_; }

 private:
  /// Tensors without elements have an address all the same.
  void move_to_gpu(Request& request) {
    request.device = {.kind = DeviceKind::Cuda, .index = gpu_->context->index()};
    request.stream = gpu_->stream.handle();
    on_gpu_.emplace_back(*gpu_, bytes_of(buffers_.input));
    on_gpu_.emplace_back(*gpu_, bytes_of(buffers_.output));
    if (buffers_.input.count() > 0) request.input = on_gpu_.front().data();
    if (buffers_.output.count() > 0) request.output = on_gpu_.back().data();
  }

  const Job job_;
  ProgramGpu* const gpu_;
  std::size_t begin_ = 0;
  Buffers buffers_;
  std::vector<GpuTensor> on_gpu_;
  Work work_;
};

void check_numbers(const Job& job, InFlight& flight, int ranks) {
  const TensorValues& result = flight.result();
  if (job.absent >= 0) return;  // compared with the CPU's
  for (std::size_t i = 0; i < result.count(); ++i) {
    const Case test{job.kind, job.dtype, job.op, ranks};
    const double right = expected_reduction(test, flight.begin() + i, job.prescale, job.postscale);
    double room = ranks * tolerance(job.wire.value_or(job.dtype), right);
    if (job.wire || is_half(job.dtype)) room += 0.02;  // of a sum that ends near zero
    if (is_floating(job.dtype)) room += 1e-5;
    const bool is_right = std::abs(result.get(i) - right) <= room;
    check(is_right, text_of(job) + ": element " + std::to_string(i) + " is " +
                        std::to_string(result.get(i)) + ", not " + std::to_string(right));
  }
}

}  // namespace

std::vector<Job> all_jobs(Collective kind, int ranks) {
  std::vector<Job> jobs;
  const auto add = [&](DataType dtype, std::optional<DataType> wire) {
    for (const ReduceOp op : kElementwiseOps) {
      if (dtype == DataType::Bool && op == ReduceOp::Average) continue;
      const std::pair<double, double> scales[] = {{1, 1}, {0.5, 0.25}, {0.3, 1.7}, {-2, 1}};
      for (const auto& [prescale, postscale] : scales) {
        for (const std::size_t count : {0, 1, 3, 64, 700, 1001}) {
          if (prescale != 1 && count != 3 && count != 700) continue;
          // In no step with the loops.
          const std::uint32_t number = static_cast<std::uint32_t>(jobs.size() + 1) * 2654435761U;
          const bool negates = prescale < 0 && count == 700;  // the neutral element as well
          const bool lacks = ranks > 1 && (negates || (number >> 16) % 3 == 0);
          const int absent =
              lacks ? static_cast<int>((number >> 8) % static_cast<unsigned>(ranks)) : -1;
          jobs.push_back({kind, dtype, wire, op, prescale, postscale, count, absent});
        }
      }
    }
  };
  for (const DataType dtype : kAllDataTypes) add(dtype, {});
  if (kind != Collective::Allreduce) return jobs;
  for (const DataType dtype : {DataType::F32, DataType::F64}) {
    for (const DataType wire : {DataType::F16, DataType::BF16}) add(dtype, wire);
  }
  return jobs;
}

std::vector<Job> chosen(const std::vector<Job>& jobs, std::size_t every) {
  std::vector<Job> some;
  for (std::size_t i = 0; i < jobs.size(); i += every) some.push_back(jobs[i]);
  return some;
}

void check_jobs(const std::vector<Job>& jobs, ProgramGpu& gpu, Runtime& runtime, bool at_once,
                bool has_order) {
  const int ranks = runtime.topology().size;
  std::deque<InFlight> simple_ones, on_gpu, on_host;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    const std::string name = std::to_string(i);
    on_gpu.emplace_back(jobs[i], &gpu, "gpu" + name, wild, runtime);
    if (!at_once) on_gpu.back().result();
    on_host.emplace_back(jobs[i], nullptr, "host" + name, wild, runtime);
    simple_ones.emplace_back(jobs[i], &gpu, "simple" + name, simple, runtime);
  }
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    check_numbers(jobs[i], simple_ones[i], ranks);
    const bool is_equal = on_gpu[i].result() == on_host[i].result();
    const bool must_be = has_order || !depends_on_order(jobs[i]);
    check(is_equal || !must_be, "as on the CPU: " + text_of(jobs[i]));
  }
}

}  // namespace ronde::test
