// SPDX-License-Identifier: Apache-2.0
// Alltoall and reducescatter over shared memory and over MPI.
#include <algorithm>
#include <new>
#include <numeric>
#include <string>
#include <vector>

#include "case_table.h"
#include "oracle.h"
#include "plain_mpi.h"
#include "ronde/ronde.h"

namespace ronde::test {
namespace {

using Rows = std::vector<std::int64_t>;

constexpr std::int64_t kColumns = 3;

std::size_t elements_of(std::int64_t rows) {
  return static_cast<std::size_t>(rows * kColumns);
}

std::int64_t sum(const Rows& rows) {
  return std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
}

/// A request whose result goes to `output`, which gets its size from Ronde.
Request request_into(Elements& output, Collective kind, const Elements& input,
                     const std::string& name) {
  Request request;
  request.kind = kind;
  request.name = name;
  request.dtype = input.dtype();
  request.shape = {static_cast<std::int64_t>(input.count()) / kColumns, kColumns};
  request.input = input.data();
  request.allocate_output = [&output, dtype = input.dtype()](const Rows& shape) {
    output = Elements(dtype, elements_of(shape.at(0)));
    return output.data();
  };
  return request;
}

/// Who sends how many rows to whom; the last exceeds the fusion buffer many times.
std::int64_t sent_rows(int variant, int from, int to) {
  switch (variant) {
    case 0:
      return 5;
    case 1:
      return (from * 3 + to * 2) % 4;
    case 2:
      return to == 0 ? from * 100 : 0;
    case 3:
      return 0;
    default:
      return from == to ? 1 : 3001 + 7 * from + to;
  }
}

Rows splits_of(int variant, int from, int ranks) {
  Rows splits;
  for (int to = 0; to < ranks; ++to) splits.push_back(sent_rows(variant, from, to));
  return splits;
}

/// What every rank sends to this one.
std::vector<std::byte> received_bytes(const PlainMpi& mpi, DataType dtype, int variant,
                                      std::uint64_t seed) {
  std::vector<std::byte> expected;
  for (int from = 0; from < mpi.size(); ++from) {
    const Rows splits = splits_of(variant, from, mpi.size());
    const Elements input = make_bytes(dtype, elements_of(sum(splits)), from, seed);
    const Rows before(splits.begin(), splits.begin() + mpi.rank());
    const auto part = input.bytes(elements_of(sum(before)),
                                  elements_of(splits[static_cast<std::size_t>(mpi.rank())]));
    expected.insert(expected.end(), part.begin(), part.end());
  }
  return expected;
}

void check_alltoall(PlainMpi& mpi, DataType dtype, int variant, std::uint64_t round) {
  CAPTURE(to_string(dtype), variant, round);
  const Rows splits = splits_of(variant, mpi.rank(), mpi.size());
  const Elements input = make_bytes(dtype, elements_of(sum(splits)), mpi.rank(), round);
  Elements output(dtype, 0);
  Request request =
      request_into(output, Collective::Alltoall, input, "exchange " + std::to_string(variant));
  if (variant != 0) request.splits = splits;
  const Work work = ronde::submit(std::move(request));
  work.wait();
  Rows received;
  for (int from = 0; from < mpi.size(); ++from) {
    received.push_back(sent_rows(variant, from, mpi.rank()));
  }
  CHECK(work.received_splits() == received);
  CHECK(std::ranges::equal(output.bytes(), received_bytes(mpi, dtype, variant, round)));
}

std::int64_t rows_on(int rank, std::int64_t rows, int ranks) {
  return rows / ranks + (rank < rows % ranks ? 1 : 0);
}

void check_reducescatter(PlainMpi& mpi, const Reduction& reduction, std::int64_t rows,
                         std::uint64_t round) {
  CAPTURE(to_string(reduction.op), rows, reduction.prescale, round);
  const std::vector<Elements> inputs =
      make_inputs(reduction.dtype, reduction.op, elements_of(rows), mpi.size(), round);
  Elements output(reduction.dtype, 0);
  Request request =
      request_into(output, Collective::Reducescatter, inputs[static_cast<std::size_t>(mpi.rank())],
                   std::to_string(rows) + (reduction.prescale == 1 ? "" : " scaled"));
  request.op = reduction.op;
  request.prescale = reduction.prescale;
  request.postscale = reduction.postscale;
  ronde::submit(std::move(request)).wait();
  std::int64_t begin = 0;
  for (int rank = 0; rank < mpi.rank(); ++rank) begin += rows_on(rank, rows, mpi.size());
  CHECK(output.count() == elements_of(rows_on(mpi.rank(), rows, mpi.size())));
  CHECK(first_difference(reduction, inputs, output, elements_of(begin)) == "");
}

void check_reducescatters(DataType dtype) {
  with_each_backend([&](PlainMpi& mpi, const std::string& backend) {
    CAPTURE(backend);
    for (const ReduceOp op : kElementwiseOps) {
      if (dtype == DataType::Bool && op == ReduceOp::Average) continue;
      Reduction reduction = {dtype, op, 1.0, 1.0, mpi.size()};
      for (const std::int64_t rows : {0, 1, 7, 2001}) {
        // The second round runs from the response cache.
        for (const std::uint64_t round : {0U, 1U}) {
          check_reducescatter(mpi, reduction, rows, round);
        }
      }
      if (dtype == DataType::Bool) continue;
      reduction.prescale = is_floating(dtype) ? 0.3 : 0.5;
      reduction.postscale = is_floating(dtype) ? 1.7 : 0.25;
      check_reducescatter(mpi, reduction, 501, 2);
    }
  });
}

/// Of ones, of which the last rank has no memory for its result.
void check_without_memory(PlainMpi& mpi, Collective kind) {
  CAPTURE(to_string(kind));
  Elements input(DataType::I32, elements_of(1200 * mpi.size()));
  for (std::size_t i = 0; i < input.count(); ++i) input.set_integer(i, 1);
  Elements output(DataType::I32, 0);
  Request request = request_into(output, kind, input, "no memory " + std::string(to_string(kind)));
  const bool fails = mpi.rank() == mpi.size() - 1;
  if (fails) request.allocate_output = [](const Rows&) -> void* { throw std::bad_alloc(); };
  const Work work = ronde::submit(std::move(request));
  if (fails) {
    CHECK_THROWS_AS(work.wait(), OutOfMemoryError);
    return;
  }
  work.wait();
  const std::int64_t one = kind == Collective::Reducescatter ? mpi.size() : 1;
  const std::int64_t rows = 1200 * (kind == Collective::Allgather  ? mpi.size() * mpi.size()
                                    : kind == Collective::Alltoall ? mpi.size()
                                                                   : 1);
  CHECK(output.integers() == std::vector<std::int64_t>(elements_of(rows), one));
}

[[maybe_unused]] const bool kRegistered = [] {
  add_case("a rank without memory for its result fails alone on every backend", "", [] {
    with_each_backend([](PlainMpi& mpi, const std::string& backend) {
      CAPTURE(backend);
      check_without_memory(mpi, Collective::Allgather);
      check_without_memory(mpi, Collective::Alltoall);
      check_without_memory(mpi, Collective::Reducescatter);
      ronde::barrier();
    });
  });
  add_case("alltoall of every type is right on every backend", "[alltoall]", [] {
    with_each_backend([](PlainMpi& mpi, const std::string& backend) {
      CAPTURE(backend);
      for (const DataType dtype : kAllDataTypes) {
        for (int variant = 0; variant < 5; ++variant) {
          for (const std::uint64_t round : {0U, 1U}) check_alltoall(mpi, dtype, variant, round);
        }
      }
    });
  });
  for (const DataType dtype : kAllDataTypes) {
    add_case("reducescatter of " + std::string(to_string(dtype)) + " is right on every backend",
             "[reducescatter]", [dtype] { check_reducescatters(dtype); });
  }
  return true;
}();

}  // namespace
}  // namespace ronde::test
