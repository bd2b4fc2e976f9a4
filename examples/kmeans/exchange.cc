// SPDX-License-Identifier: Apache-2.0
#include "exchange.h"

#include <ronde/ronde.h>

#include <utility>

namespace kmeans {
namespace {

/// A request to work on `count` elements; ronde::run() submits it and waits.
ronde::Request request(ronde::Collective kind, ronde::DataType dtype, const void* input,
                       void* output, std::size_t count, const std::string& name) {
  ronde::Request request;
  request.kind = kind;
  request.name = name;
  request.dtype = dtype;
  request.shape = {static_cast<std::int64_t>(count)};
  request.input = input;
  request.output = output;
  return request;
}

}  // namespace

void allreduce_sum(std::span<std::int64_t> values, const std::string& name) {
  ronde::Request sum = request(ronde::Collective::Allreduce, ronde::DataType::I64, values.data(),
                               values.data(), values.size(), name);
  sum.op = ronde::ReduceOp::Sum;
  ronde::run(std::move(sum));
}

void allreduce_max(std::span<double> values, const std::string& name) {
  ronde::Request max = request(ronde::Collective::Allreduce, ronde::DataType::F64, values.data(),
                               values.data(), values.size(), name);
  max.op = ronde::ReduceOp::Max;
  ronde::run(std::move(max));
}

void broadcast(std::span<double> values, int root, const std::string& name) {
  ronde::Request broadcast = request(ronde::Collective::Broadcast, ronde::DataType::F64,
                                     values.data(), values.data(), values.size(), name);
  broadcast.root = root;
  ronde::run(std::move(broadcast));
}

std::vector<double> allgather(std::span<const double> values, std::size_t total,
                              const std::string& name) {
  std::vector<double> all(total);
  ronde::run(request(ronde::Collective::Allgather, ronde::DataType::F64, values.data(), all.data(),
                     values.size(), name));
  return all;
}

std::vector<std::int32_t> allgather(std::span<const std::int32_t> values, std::size_t total,
                                    const std::string& name) {
  std::vector<std::int32_t> all(total);
  ronde::run(request(ronde::Collective::Allgather, ronde::DataType::I32, values.data(), all.data(),
                     values.size(), name));
  return all;
}

}  // namespace kmeans
