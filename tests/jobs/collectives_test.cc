// SPDX-License-Identifier: Apache-2.0
// Collectives of any size, whose rows are spread over the ranks in any way, over shared memory and
// over MPI, against the oracle. Several in flight at a time are in random_programs_test.cc.
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "ronde/ronde.h"
#include "tests/support/harness/case_table.h"
#include "tests/support/oracle/forms.h"
#include "tests/support/oracle/oracle.h"
#include "tests/support/oracle/plain_mpi.h"

namespace ronde::test {
namespace {

/// Runs a row; one of width 7 runs twice, the second time from the response cache.
void check_row(const PlainMpi& mpi, const Row& row) {
  const Place place = {kGlobalSet, ronde::ranks_of(kGlobalSet), mpi.rank()};
  for (int round = 0; round < (row.width == 7 ? 2 : 1); ++round) {
    CAPTURE(to_string(row.dtype), to_string(row.op), row.width, static_cast<int>(row.spread));
    CAPTURE(row.in_place, row.allocated, row.root, row.prescale, round);
    CHECK(run_row(row, default_runtime(), place) == "");
  }
}

/// Nothing, one element, some, and many fusion buffers of 4 KiB, with every spread of the rows.
void check_sizes(const PlainMpi& mpi, Row row) {
  for (const std::size_t width : {0, 1, 7, 3001}) {
    row.width = width;
    for (const Spread spread : {Spread::Uneven, Spread::Even, Spread::Skewed}) {
      row.spread = spread;
      check_row(mpi, row);
    }
  }
}

/// In place, or into memory that is given, or that Ronde asks for.
void check_forms(const PlainMpi& mpi, Collective kind, DataType dtype) {
  check_sizes(mpi, {.kind = kind, .dtype = dtype, .in_place = true});
  check_sizes(mpi, {.kind = kind, .dtype = dtype});
  check_sizes(mpi, {.kind = kind, .dtype = dtype, .allocated = true});
}

void check_broadcast(const PlainMpi& mpi, DataType dtype) {
  for (const std::size_t width : {0, 1, 7, 3001}) {
    for (int root = 0; root < mpi.size(); ++root) {
      for (const bool in_place : {false, true}) {
        check_row(mpi, {.kind = Collective::Broadcast,
                        .dtype = dtype,
                        .in_place = in_place,
                        .root = root,
                        .width = width,
                        .spread = width == 1 ? Spread::Skewed : Spread::Uneven});
      }
    }
  }
}

bool can_be_sent_as_half(DataType dtype) {
  return real_type(dtype) == DataType::F32 || real_type(dtype) == DataType::F64;
}

/// Checks every op that the type has with scales, and returns those without.
std::vector<Row> check_scales(const PlainMpi& mpi, Collective kind, DataType dtype) {
  std::vector<Row> rows;
  for (const ReduceOp op : ops_of(dtype)) {
    Row row = {.kind = kind, .dtype = dtype, .op = op};
    rows.push_back(row);
    if (!can_have_factors(dtype, op)) continue;
    row.prescale = 0.3;
    row.postscale = 1.7;
    check_row(mpi, row);
    if (kind == Collective::Reducescatter || !can_be_sent_as_half(dtype)) continue;
    for (const DataType wire_dtype : {DataType::F16, DataType::BF16}) {
      row.wire_dtype = wire_dtype;
      check_row(mpi, row);
    }
  }
  return rows;
}

void check_reducescatter(const PlainMpi& mpi, DataType dtype) {
  for (Row row : check_scales(mpi, Collective::Reducescatter, dtype)) {
    row.allocated = true;
    check_sizes(mpi, row);
  }
}

void check_reduce(const PlainMpi& mpi, DataType dtype) {
  for (Row row : check_scales(mpi, Collective::Reduce, dtype)) {
    row.root = mpi.size() - 1;
    for (const bool in_place : {false, true}) {
      row.in_place = in_place;
      check_row(mpi, row);
    }
  }
}

void check_allreduce(const PlainMpi& mpi, DataType dtype) {
  for (Row row : check_scales(mpi, Collective::Allreduce, dtype)) {
    for (const std::size_t width : {0, 1, 7, 3001}) {
      row.width = width;
      row.spread = width == 1 ? Spread::Skewed : Spread::Uneven;
      for (const bool in_place : {false, true}) {
        row.in_place = in_place;
        row.wire_dtype.reset();
        check_row(mpi, row);
        if (!can_be_sent_as_half(dtype)) continue;
        row.wire_dtype = in_place ? DataType::F16 : DataType::BF16;
        check_row(mpi, row);
      }
    }
  }
}

/// A case of every type over every backend.
template <typename Check>
void add_types(Collective kind, Check check) {
  const std::string name(to_string(kind));
  add_case(name + " of every type is right on every backend", "[" + name + "]", [check] {
    with_each_backend([&](const PlainMpi& mpi, const std::string& backend) {
      CAPTURE(backend);
      for (const DataType dtype : kAllDataTypes) check(mpi, dtype);
    });
  });
}

[[maybe_unused]] const bool kRegistered = [] {
  add_types(Collective::Allreduce, check_allreduce);
  add_types(Collective::Reduce, check_reduce);
  add_types(Collective::Broadcast, check_broadcast);
  add_types(Collective::Reducescatter, check_reducescatter);
  for (const Collective kind : {Collective::Allgather, Collective::Alltoall}) {
    add_types(kind, [kind](const PlainMpi& mpi, DataType dtype) { check_forms(mpi, kind, dtype); });
  }
  return true;
}();

}  // namespace
}  // namespace ronde::test
