// SPDX-License-Identifier: Apache-2.0
// Alltoall and reducescatter over shared memory and over MPI, against the inputs gathered by plain
// MPI.
#include <algorithm>
#include <new>
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
  std::int64_t total = 0;
  for (const std::int64_t count : rows) total += count;
  return total;
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

/// What plain MPI says that every rank sent to this one.
std::vector<std::byte> exchange_plainly(PlainMpi& mpi, const Elements& input, int variant) {
  std::int64_t most = 0;
  for (int from = 0; from < mpi.size(); ++from) {
    most = std::max(most, sum(splits_of(variant, from, mpi.size())));
  }
  const std::size_t width = size_of(input.dtype());
  std::vector<std::byte> padded(input.bytes().begin(), input.bytes().end());
  padded.resize(elements_of(most) * width);
  const std::vector<std::byte> all = mpi.gather(std::span<const std::byte>(padded));
  std::vector<std::byte> expected;
  for (int from = 0; from < mpi.size(); ++from) {
    const Rows splits = splits_of(variant, from, mpi.size());
    const auto own = static_cast<std::size_t>(mpi.rank());
    const Rows before(splits.begin(), splits.begin() + mpi.rank());
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(padded.size()) * from +
                       static_cast<std::ptrdiff_t>(elements_of(sum(before)) * width);
    const auto bytes = static_cast<std::ptrdiff_t>(elements_of(splits[own]) * width);
    expected.insert(expected.end(), begin, begin + bytes);
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
  const std::vector<std::byte> expected = exchange_plainly(mpi, input, variant);
  CHECK(std::equal(output.bytes().begin(), output.bytes().end(), expected.begin(), expected.end()));
}

std::int64_t rows_on(int rank, std::int64_t rows, int ranks) {
  return rows / ranks + (rank < rows % ranks ? 1 : 0);
}

template <typename Number>
std::string difference(const PlainMpi& mpi, const Reduction& reduction,
                       const std::vector<Number>& all, std::int64_t rows, const Elements& result) {
  std::int64_t first = 0;
  for (int rank = 0; rank < mpi.rank(); ++rank) first += rows_on(rank, rows, mpi.size());
  std::vector<Number> own_part;
  for (std::size_t begin = elements_of(first); begin < all.size(); begin += elements_of(rows)) {
    if (result.count() == 0) break;
    const auto from = all.begin() + static_cast<std::ptrdiff_t>(begin);
    own_part.insert(own_part.end(), from, from + static_cast<std::ptrdiff_t>(result.count()));
  }
  return first_difference(reduction, own_part, result);
}

void check_reducescatter(PlainMpi& mpi, const Reduction& reduction, std::int64_t rows,
                         std::uint64_t round) {
  CAPTURE(to_string(reduction.op), rows, reduction.prescale, round);
  const Elements input =
      make_input(reduction.dtype, reduction.op, elements_of(rows), mpi.rank(), round);
  Elements output(reduction.dtype, 0);
  Request request = request_into(output, Collective::Reducescatter, input,
                                 std::to_string(rows) + (reduction.prescale == 1 ? "" : " scaled"));
  request.op = reduction.op;
  request.prescale = reduction.prescale;
  request.postscale = reduction.postscale;
  ronde::submit(std::move(request)).wait();
  CHECK(output.count() == elements_of(rows_on(mpi.rank(), rows, mpi.size())));
  if (is_floating(reduction.dtype)) {
    CHECK(difference(mpi, reduction, mpi.gather(input.numbers()), rows, output) == "");
  } else {
    CHECK(difference(mpi, reduction, mpi.gather(input.integers()), rows, output) == "");
  }
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
  add_case("alltoall of every type equals plain MPI", "[alltoall]", [] {
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
    add_case("reducescatter of " + std::string(to_string(dtype)) + " equals plain MPI",
             "[reducescatter]", [dtype] { check_reducescatters(dtype); });
  }
  return true;
}();

}  // namespace
}  // namespace ronde::test
