// SPDX-License-Identifier: Apache-2.0
// wrong_bench bench SUBCOMMAND --backend wrong-in-the-N ...
//
// `ronde bench` over a backend that does its N-th operation wrong on the last rank: it flips a bit
// of the first byte that was written there.
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "backends/compose.h"
#include "ronde/ronde.h"
#include "tests/support/fakes/wrapped_backend.h"
#include "tools/bench/bench.h"

namespace {

class Wrong final : public ronde::Operation {
 public:
  Wrong(std::unique_ptr<ronde::Operation> right, void* output)
      : right_(std::move(right)), output_(output) {}

  bool poll() override {
    if (!right_->poll()) return false;
    *static_cast<unsigned char*>(output_) ^= 1U;
    return true;
  }

 private:
  std::unique_ptr<ronde::Operation> right_;
  void* output_;
};

class WrongBackend final : public ronde::test::WrappedBackend {
 public:
  WrongBackend(std::unique_ptr<ronde::Backend> right, int countdown)
      : WrappedBackend("wrong", std::move(right)), countdown_(countdown) {}

 private:
  std::unique_ptr<ronde::Operation> wrap(Start start, void* output) override {
    auto operation = start();
    if (output == nullptr || --countdown_ != 0) return operation;
    return std::make_unique<Wrong>(std::move(operation), output);
  }

  int countdown_;
};

ronde::BackendFactory wrong_in_the(int nth) {
  // Over the backend that is always there: by MPI, or of one process.
  const ronde::BackendRegistry backends = ronde::compose_built_in({}).backends;
  const auto mpi = backends.find("mpi");
  ronde::BackendFactory factory = mpi != backends.end() ? mpi->second : backends.at("shm");
  factory.priority = -1;
  factory.create = [nth, right = factory.create](ronde::BackendContext& context) {
    const bool is_last = context.topology->rank == context.topology->size - 1;
    constexpr int kNever = 1 << 30;
    return std::make_unique<WrongBackend>(right(context), is_last ? nth : kNever);
  };
  return factory;
}

}  // namespace

int main(int argc, char** argv) {
  for (const int nth : {1, 2, 3, 4, 5, 6}) {
    ronde::register_backend("wrong-in-the-" + std::to_string(nth), wrong_in_the(nth));
  }
  CLI::App app("`ronde bench` over a backend that is wrong");
  int exit_code = EXIT_SUCCESS;
  ronde::tool::add_bench(app, exit_code);
  CLI11_PARSE(app, argc, argv);
  return exit_code;
}
