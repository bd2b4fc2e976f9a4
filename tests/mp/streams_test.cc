// SPDX-License-Identifier: Apache-2.0
// Streams that freeze, and values that floats make difficult. Ranks that submit in different
// orders, from several threads and without names are in random_programs_test.cc.
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "case_table.h"
#include "oracle.h"
#include "plain_mpi.h"
#include "ranks.h"
#include "ronde/ronde.h"

namespace ronde::test {
namespace {

/// An allreduce, or a broadcast from `root`.
struct Tensor {
  Collective kind = Collective::Allreduce;
  Reduction reduction;
  std::vector<Elements> inputs;  ///< of all ranks
  Elements output;
  int root = 0;
  Work work = {};
};

void submit(Tensor& tensor, const std::string& name) {
  Request request;
  request.kind = tensor.kind;
  request.name = name;
  request.dtype = tensor.reduction.dtype;
  request.op = tensor.reduction.op;
  request.root = tensor.root;
  request.shape = {static_cast<std::int64_t>(tensor.output.count())};
  request.input = tensor.inputs.at(static_cast<std::size_t>(ronde::rank())).data();
  request.output = tensor.output.data();
  tensor.work = ronde::submit(std::move(request));
}

std::string difference(const Tensor& tensor) {
  if (tensor.kind == Collective::Broadcast) {
    const auto root = static_cast<std::size_t>(tensor.root);
    return tensor.output == tensor.inputs[root] ? "" : "not what the root sent";
  }
  return first_difference(tensor.reduction, tensor.inputs, tensor.output);
}

/// The same on every rank: all follows from the seed.
std::vector<Tensor> make_stream(unsigned seed, int ranks) {
  std::mt19937 random(seed);
  const auto pick = [&](unsigned below) { return static_cast<std::size_t>(random() % below); };
  std::vector<Tensor> stream;
  for (int i = 0; i < 25; ++i) {
    const DataType dtype = kAllDataTypes[pick(9)];  // all but bool, which has no average
    const Reduction reduction = {.dtype = dtype, .op = kElementwiseOps[pick(5)], .ranks = ranks};
    const std::size_t count = pick(5) == 0 ? pick(5000) : pick(200);
    stream.push_back({pick(4) == 0 ? Collective::Broadcast : Collective::Allreduce, reduction,
                      make_inputs(dtype, reduction.op, count, ranks, random()),
                      Elements(dtype, count),
                      static_cast<int>(pick(static_cast<unsigned>(ranks)))});
  }
  return stream;
}

/// The same stream again and again freezes; another one in between thaws it.
void check_repeated_streams(const std::string& backend) {
  with_group(
      [](PlainMpi& mpi) {
        for (unsigned seed = 20; seed < 23; ++seed) {
          std::vector<Tensor> stream = make_stream(seed, mpi.size());
          for (int round = 0; round < 25; ++round) {
            int index = 0;
            for (Tensor& tensor : stream) submit(tensor, "layer " + std::to_string(index++));
            for (const Tensor& tensor : stream) tensor.work.wait();
          }
          for (const Tensor& tensor : stream) {
            CAPTURE(seed, to_string(tensor.kind), to_string(tensor.reduction.dtype));
            CHECK(difference(tensor) == "");
            CHECK(mpi.same_everywhere(tensor.output.bytes()));
          }
        }
        CHECK(counter_of(default_runtime(), "schedule", "freezes") >= 1);
        CHECK(counter_of(default_runtime(), "schedule", "thaws") >= 1);
        mpi.barrier();  // a shutdown thaws as well
      },
      {{"RONDE_CPU_BACKEND", backend}});
}

/// Each rank contributes one special value, to an element of its own and to one that all share.
void check_special_values(DataType dtype) {
  using Limits = std::numeric_limits<double>;
  const std::vector<double> specials = {Limits::quiet_NaN(), Limits::infinity(),
                                        -Limits::infinity(), -0.0, 0.0};
  with_each_backend([&](PlainMpi& mpi, const std::string& backend) {
    const auto ranks = static_cast<std::size_t>(mpi.size());
    const std::size_t count = (ranks + 1) * specials.size();
    for (const ReduceOp op : kElementwiseOps) {
      Tensor tensor = {Collective::Allreduce,
                       {.dtype = dtype, .op = op, .ranks = mpi.size()},
                       make_inputs(dtype, op, count, mpi.size(), 3),
                       Elements(dtype, count)};
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        for (std::size_t i = 0; i < specials.size(); ++i) {
          Elements& input = tensor.inputs[rank];
          input.set_number(i * (ranks + 1) + rank, specials[i]);
          input.set_number(i * (ranks + 1) + ranks, specials[(i + rank) % specials.size()]);
        }
      }
      submit(tensor, "special");
      tensor.work.wait();
      CAPTURE(backend, to_string(op));
      CHECK(difference(tensor) == "");
      CHECK(mpi.same_everywhere(tensor.output.bytes()));
    }
  });
}

[[maybe_unused]] const bool kRegistered = [] {
  for (const std::string backend : {"shm", "mpi"}) {
    add_case("a stream that repeats itself runs from a frozen schedule, with " + backend,
             "[n2][n3][n4]", [backend] { check_repeated_streams(backend); });
  }
  for (const DataType dtype : {DataType::F16, DataType::BF16, DataType::F32, DataType::F64}) {
    add_case("NaN, infinities and -0 of " + std::string(to_string(dtype)) + " are reduced", "",
             [dtype] { check_special_values(dtype); });
  }
  return true;
}();

}  // namespace
}  // namespace ronde::test
