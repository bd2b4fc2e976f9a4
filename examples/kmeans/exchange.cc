// SPDX-License-Identifier: Apache-2.0
#include "exchange.h"

#include <ronde/ronde.h>

#include <utility>

namespace kmeans {
namespace {

template <typename Value>
constexpr ronde::DataType kDataType = ronde::DataType::F64;
template <>
constexpr ronde::DataType kDataType<std::int64_t> = ronde::DataType::I64;
template <>
constexpr ronde::DataType kDataType<std::int32_t> = ronde::DataType::I32;

template <typename Value>
ronde::Request request(ronde::Collective kind, std::span<Value> values, const std::string& name) {
  ronde::Request request;
  request.kind = kind;
  request.name = name;
  request.dtype = kDataType<std::remove_const_t<Value>>;
  request.shape = {static_cast<std::int64_t>(values.size())};
  request.input = values.data();
  return request;
}

template <typename Value>
void allreduce(std::span<Value> values, ronde::ReduceOp op, const std::string& name) {
  ronde::Request reduction = request(ronde::Collective::Allreduce, values, name);
  reduction.output = values.data();
  reduction.op = op;
  ronde::run(std::move(reduction));
}

template <typename Value>
std::vector<Value> gather(std::span<const Value> values, std::size_t total,
                          const std::string& name) {
  std::vector<Value> all(total);
  ronde::Request gathering = request(ronde::Collective::Allgather, values, name);
  gathering.output = all.data();
  ronde::run(std::move(gathering));
  return all;
}

}  // namespace

void allreduce_sum(std::span<std::int64_t> values, const std::string& name) {
  allreduce(values, ronde::ReduceOp::Sum, name);
}

void allreduce_max(std::span<double> values, const std::string& name) {
  allreduce(values, ronde::ReduceOp::Max, name);
}

void allreduce_average(std::span<double> values, const std::string& name) {
  allreduce(values, ronde::ReduceOp::Average, name);
}

void broadcast(std::span<double> values, int root, const std::string& name) {
  ronde::Request request = kmeans::request(ronde::Collective::Broadcast, values, name);
  request.output = values.data();
  request.root = root;
  ronde::run(std::move(request));
}

std::vector<double> allgather(std::span<const double> values, const std::string& name) {
  return gather(values, values.size() * static_cast<std::size_t>(ronde::size()), name);
}

std::vector<std::int32_t> allgather(std::span<const std::int32_t> values, std::int64_t total,
                                    const std::string& name) {
  return gather(values, static_cast<std::size_t>(total), name);
}

}  // namespace kmeans
