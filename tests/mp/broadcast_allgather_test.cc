// SPDX-License-Identifier: Apache-2.0
// Broadcast and allgather of every element type over shared memory and over MPI, bit for bit
// against plain MPI.
#include <string>
#include <vector>

#include "case_table.h"
#include "plain_mpi.h"
#include "ronde/ronde.h"

namespace ronde::test {
namespace {

constexpr std::size_t kCounts[] = {0, 1, 7, 513, 20011};

std::vector<std::byte> part_of(const std::vector<std::byte>& all, int rank, std::size_t bytes) {
  const auto begin = all.begin() + static_cast<std::ptrdiff_t>(bytes) * rank;
  return {begin, begin + static_cast<std::ptrdiff_t>(bytes)};
}

bool equal(std::span<const std::byte> a, const std::vector<std::byte>& b) {
  return std::vector<std::byte>(a.begin(), a.end()) == b;
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
    const std::vector<std::byte> all = mpi.gather(inputs[i].bytes());
    CHECK(equal(outputs[i].bytes(), part_of(all, root, inputs[i].bytes().size())));
    CHECK(inputs[i] ==
          make_bytes(dtype, inputs[i].count(), mpi.rank(), static_cast<std::uint64_t>(root)));
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
  std::vector<std::int64_t> rows;  ///< of every rank
  std::vector<std::int64_t> row_shape;
  Output output;
};

std::int64_t row_elements(const Gather& gather) {
  std::int64_t elements = 1;
  for (const std::int64_t dimension : gather.row_shape) elements *= dimension;
  return elements;
}

std::int64_t sum(const std::vector<std::int64_t>& numbers, std::size_t first_n) {
  std::int64_t total = 0;
  for (std::size_t i = 0; i < first_n; ++i) total += numbers[i];
  return total;
}

/// Pads every rank's part to the largest, as plain MPI_Allgather wants, and cuts it out again.
std::vector<std::byte> gather_plainly(PlainMpi& mpi, const Elements& input, const Gather& gather) {
  const std::int64_t width =
      row_elements(gather) * static_cast<std::int64_t>(size_of(input.dtype()));
  std::int64_t most = 0;
  for (const std::int64_t rows : gather.rows) most = std::max(most, rows * width);
  std::vector<std::byte> padded(input.bytes().begin(), input.bytes().end());
  padded.resize(static_cast<std::size_t>(most));
  const std::vector<std::byte> all = mpi.gather(std::span<const std::byte>(padded));
  std::vector<std::byte> result;
  for (std::size_t rank = 0; rank < gather.rows.size(); ++rank) {
    const auto begin = all.begin() + most * static_cast<std::int64_t>(rank);
    result.insert(result.end(), begin, begin + gather.rows[rank] * width);
  }
  return result;
}

Request gather_request(const Gather& gather, DataType dtype, int rank) {
  Request request;
  request.kind = Collective::Allgather;
  request.name = gather.name;
  request.dtype = dtype;
  request.shape = {gather.rows[static_cast<std::size_t>(rank)]};
  request.shape.insert(request.shape.end(), gather.row_shape.begin(), gather.row_shape.end());
  return request;
}

void check_gather(PlainMpi& mpi, DataType dtype, const Gather& gather, std::uint64_t seed) {
  CAPTURE(gather.name, seed);
  const auto own = static_cast<std::size_t>(mpi.rank());
  const std::int64_t row = row_elements(gather);
  const std::int64_t total = sum(gather.rows, gather.rows.size());
  const auto own_count = static_cast<std::size_t>(gather.rows[own] * row);
  const Elements input = make_bytes(dtype, own_count, mpi.rank(), seed);
  const bool is_allocated = gather.output == Output::Allocated;
  Elements output(dtype, is_allocated ? 0 : static_cast<std::size_t>(total * row));
  std::vector<std::int64_t> shape;
  Request request = gather_request(gather, dtype, mpi.rank());
  request.input = input.data();
  request.output = output.data();
  if (is_allocated) {
    request.output = nullptr;
    request.allocate_output = [&](const std::vector<std::int64_t>& result_shape) {
      shape = result_shape;
      output = Elements(dtype, static_cast<std::size_t>(total * row));
      return output.data();
    };
  } else if (gather.output == Output::InPlace) {
    auto* const part = static_cast<std::byte*>(output.data()) +
                       static_cast<std::size_t>(sum(gather.rows, own) * row) * size_of(dtype);
    std::copy(input.bytes().begin(), input.bytes().end(), part);
    request.input = part;
  }
  ronde::submit(std::move(request)).wait();
  CHECK(equal(output.bytes(), gather_plainly(mpi, input, gather)));
  CHECK(mpi.same_everywhere(output.bytes()));
  if (!is_allocated) return;
  std::vector<std::int64_t> expected = {total};
  expected.insert(expected.end(), gather.row_shape.begin(), gather.row_shape.end());
  CHECK(shape == expected);
}

std::vector<Gather> make_gathers(int ranks) {
  const auto rows = [ranks](const auto& rows_of) {
    std::vector<std::int64_t> all;
    for (int rank = 0; rank < ranks; ++rank) all.push_back(rows_of(rank));
    return all;
  };
  std::vector<Gather> gathers;
  for (const Output output : {Output::Given, Output::Allocated, Output::InPlace}) {
    const std::string suffix = " by way " + std::to_string(static_cast<int>(output));
    gathers.push_back({"equal" + suffix, rows([](int) { return 7; }), {3}, output});
    gathers.push_back({"one each" + suffix, rows([](int) { return 1; }), {}, output});
    gathers.push_back({"nothing" + suffix, rows([](int) { return 0; }), {5}, output});
    gathers.push_back({"empty rows" + suffix, rows([](int) { return 4; }), {0, 2}, output});
    // The first rank has nothing, and the last much more than fits the buffer.
    gathers.push_back(
        {"uneven" + suffix, rows([](int rank) { return rank * rank * 501; }), {2, 3}, output});
    gathers.push_back(
        {"large first" + suffix, rows([](int rank) { return rank == 0 ? 9001 : 1; }), {}, output});
  }
  return gathers;
}

void check_allgather(DataType dtype) {
  with_each_backend([&](PlainMpi& mpi, const std::string& backend) {
    for (const std::uint64_t round : {0U, 1U}) {
      CAPTURE(backend);
      for (const Gather& gather : make_gathers(mpi.size())) {
        check_gather(mpi, dtype, gather, round);
      }
    }
  });
}

[[maybe_unused]] const bool kRegistered = [] {
  for (const DataType dtype : kAllDataTypes) {
    const std::string type(to_string(dtype));
    add_case("broadcast of " + type + " equals plain MPI", "[broadcast]",
             [dtype] { check_broadcast(dtype); });
    add_case("allgather of " + type + " equals plain MPI", "[allgather]",
             [dtype] { check_allgather(dtype); });
  }
  return true;
}();

}  // namespace
}  // namespace ronde::test
