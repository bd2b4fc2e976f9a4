// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ronde/ronde.h"

namespace ronde::test {

/// A sum in a process set, of `values` that are given for as long as it lives.
struct SumIn {
  SumIn(ProcessSet set, std::vector<double> own, std::string name = "sum")
      : values(std::move(own)) {
    Request request;
    request.name = std::move(name);
    request.dtype = DataType::F64;
    request.shape = {static_cast<std::int64_t>(values.size())};
    request.input = request.output = values.data();
    request.set = set;
    work = submit(std::move(request));
  }
  SumIn(const SumIn&) = delete;
  SumIn& operator=(const SumIn&) = delete;

  /// The result.
  const std::vector<double>& wait() const {
    work.wait();
    return values;
  }

  std::vector<double> values;
  Work work;
};

inline double sum_in(ProcessSet set, double own) {
  return SumIn(set, {own}).wait().front();
}

}  // namespace ronde::test
