// SPDX-License-Identifier: Apache-2.0
// Broadcast and allgather of every element type over shared memory and over MPI, bit for bit.
#include <algorithm>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "case_table.h"
#include "plain_mpi.h"
#include "ronde/ronde.h"

namespace ronde::test {
namespace {

constexpr std::size_t kCounts[] = {0, 1, 7, 513, 20011};

/// Of every rank: `count(rank)` elements.
template <typename Count>
std::vector<std::byte> bytes_of_all(DataType dtype, Count count, std::uint64_t seed) {
  std::vector<std::byte> bytes;
  for (int rank = 0; rank < ronde::size(); ++rank) {
    const Elements input = make_bytes(dtype, count(rank), rank, seed);
    bytes.insert(bytes.end(), input.bytes().begin(), input.bytes().end());
  }
  return bytes;
}

Work submit_broadcast(const std::string& name, int root, const void* input, Elements& output) {
  Request request;
  request.kind = Collective::Broadcast;
  request.name = name;
  request.dtype = output.dtype();
  request.shape = {static_cast<std::int64_t>(output.count())};
  request.root = root;
  request.input = input;
  request.output = output.data();
  return ronde::submit(std::move(request));
}

/// One root, all sizes, in flight together; in place on every rank, then into another buffer.
void broadcast_from(PlainMpi& mpi, DataType dtype, int root, bool in_place) {
  std::vector<Elements> inputs;
  std::vector<Elements> outputs;
  std::vector<Work> works;
  for (const std::size_t count : kCounts) {
    inputs.push_back(make_bytes(dtype, count, mpi.rank(), static_cast<std::uint64_t>(root)));
    outputs.push_back(in_place ? inputs.back() : Elements(dtype, count));
  }
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const std::string name = std::to_string(inputs[i].count()) + (in_place ? " in place" : "") +
                             " from " + std::to_string(root);
    const bool is_root = mpi.rank() == root;
    const void* input = in_place ? outputs[i].data() : is_root ? inputs[i].data() : nullptr;
    works.push_back(submit_broadcast(name, root, input, outputs[i]));
  }
  for (std::size_t i = 0; i < works.size(); ++i) {
    CAPTURE(root, in_place, inputs[i].count());
    works[i].wait();
    const std::size_t count = inputs[i].count();
    CHECK(outputs[i] == make_bytes(dtype, count, root, static_cast<std::uint64_t>(root)));
    CHECK(inputs[i] == make_bytes(dtype, count, mpi.rank(), static_cast<std::uint64_t>(root)));
  }
}

void check_broadcast(DataType dtype) {
  with_each_backend([&](PlainMpi& mpi, const std::string& backend) {
    for (const std::uint64_t round : {0U, 1U}) {
      CAPTURE(backend);
      for (int root = 0; root < mpi.size(); ++root) {
        CAPTURE(round);
        broadcast_from(mpi, dtype, root, false);
        broadcast_from(mpi, dtype, root, true);
      }
    }
  });
}

// How the output of an allgather comes to be.
enum class Output { Given, Allocated, InPlace };

struct Gather {
  std::string name;
  std::int64_t (*rows)(int rank);
  std::vector<std::int64_t> row_shape;
};

const Gather kGathers[] = {
    {"equal", [](int) { return std::int64_t{7}; }, {3}},
    {"one each", [](int) { return std::int64_t{1}; }, {}},
    {"nothing", [](int) { return std::int64_t{0}; }, {5}},
    {"empty rows", [](int) { return std::int64_t{4}; }, {0, 2}},
    // The first rank has nothing, and the last much more than fits the buffer.
    {"uneven", [](int rank) { return std::int64_t{501} * rank * rank; }, {2, 3}},
    {"large first", [](int rank) { return std::int64_t{rank == 0 ? 9001 : 1}; }, {}},
};

std::vector<std::int64_t> shape_of(std::int64_t rows, const Gather& gather) {
  std::vector<std::int64_t> shape = {rows};
  shape.insert(shape.end(), gather.row_shape.begin(), gather.row_shape.end());
  return shape;
}

std::size_t elements_of(const std::vector<std::int64_t>& shape) {
  return static_cast<std::size_t>(
      std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>()));
}

void check_gather(PlainMpi& mpi, DataType dtype, const Gather& gather, Output form,
                  std::uint64_t seed) {
  CAPTURE(gather.name, static_cast<int>(form), seed);
  std::int64_t total = 0;
  std::size_t before = 0;
  for (int rank = 0; rank < mpi.size(); ++rank) {
    if (rank == mpi.rank()) before = elements_of(shape_of(total, gather));
    total += gather.rows(rank);
  }
  const std::vector<std::int64_t> result = shape_of(total, gather);
  Request request;
  request.kind = Collective::Allgather;
  request.name = gather.name + std::to_string(static_cast<int>(form));
  request.dtype = dtype;
  request.shape = shape_of(gather.rows(mpi.rank()), gather);
  const Elements input = make_bytes(dtype, elements_of(request.shape), mpi.rank(), seed);
  Elements output(dtype, form == Output::Allocated ? 0 : elements_of(result));
  std::vector<std::int64_t> asked_shape = result;
  request.input = input.data();
  if (form == Output::Allocated) {
    request.allocate_output = [&](const std::vector<std::int64_t>& shape) {
      asked_shape = shape;
      output = Elements(dtype, elements_of(result));
      return output.data();
    };
  } else {
    request.output = output.data();
  }
  if (form == Output::InPlace) {
    auto* const part = static_cast<std::byte*>(output.data()) + before * size_of(dtype);
    std::ranges::copy(input.bytes(), part);
    request.input = part;
  }
  ronde::submit(std::move(request)).wait();
  const auto count_of = [&](int rank) { return elements_of(shape_of(gather.rows(rank), gather)); };
  CHECK(std::ranges::equal(output.bytes(), bytes_of_all(dtype, count_of, seed)));
  CHECK(mpi.same_everywhere(output.bytes()));
  CHECK(asked_shape == result);
}

void check_allgather(DataType dtype) {
  with_each_backend([&](PlainMpi& mpi, const std::string& backend) {
    CAPTURE(backend);
    for (const std::uint64_t round : {0U, 1U}) {
      for (const Gather& gather : kGathers) {
        for (const Output form : {Output::Given, Output::Allocated, Output::InPlace}) {
          check_gather(mpi, dtype, gather, form, round);
        }
      }
    }
  });
}

[[maybe_unused]] const bool kRegistered = [] {
  for (const DataType dtype : kAllDataTypes) {
    const std::string type(to_string(dtype));
    add_case("broadcast of " + type + " is right on every backend", "[broadcast]",
             [dtype] { check_broadcast(dtype); });
    add_case("allgather of " + type + " is right on every backend", "[allgather]",
             [dtype] { check_allgather(dtype); });
  }
  return true;
}();

}  // namespace
}  // namespace ronde::test
