// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "ronde/algorithms.h"
#include "ronde/collective.h"
#include "tools/bench/base/simulation_costs.h"
#include "tools/bench/session/session.h"

// The benchmarks. Each prints and writes its rows; all ranks call it together.
namespace ronde::tool {

/// How much of the data a rank's buffer holds.
enum class Extent { Nothing, Share, Whole };

/// The place of a rank, which determines the expected elements of its result.
struct Place {
  int rank = 0;
  int ranks = 1;
  std::size_t share = 0;  ///< elements in one rank's part of the whole
};

/// The sum over all ranks of pattern() at `index`.
int sum_of_ranks(const Place& place, std::size_t index);

/// A benchmark of one collective over a range of sizes.
struct CollectiveBenchmark {
  std::string_view name;
  std::string_view help;
  Collective kind = Collective::Allreduce;
  Extent input = Extent::Whole;
  Extent output = Extent::Whole;
  bool in_place = false;
  /// Bus bandwidth over algorithm bandwidth: what each rank has to send or receive at least, as a
  /// part of `bytes`.
  double (*bus_factor)(int ranks) = nullptr;
  /// The closed form of element `index` of the output, where the inputs are as pattern() says.
  int (*expected)(const Place& place, std::size_t index) = nullptr;
};

std::span<const CollectiveBenchmark> collective_benchmarks();
void run_collective(const CollectiveBenchmark& benchmark, Session& session);

/// Exchanges the whole gradient list of each model: every tensor submitted asynchronously, the last
/// parameter's first, then all waited for. Takes turns with plain MPI (one call a tensor; one call
/// for all, packed before and unpacked behind it) and with copying the bytes once, on all ranks at
/// the same time, which no exchange can undercut.
void run_exchange(Session& session);

/// Allreduces of buffers on GPUs by several set-ups (gpu_setups), which take turns with each
/// other, with one copy of as many bytes within the GPU and with bare synchronisations between the
/// streams of all ranks: over a range of sizes, and of a model's gradients fused as the engine
/// would fuse them, summed up by the size of the messages. The session is one of a backend alone.
void run_setups(Session& session, const GpuAccess& access);

/// Fits the cost model of the algorithms between hosts to the rows of a report (--model).
class CostModel {
 public:
  CostModel(Session& session, Collective collective) : session_(session), collective_(collective) {}

  /// Runs the operation once more, to see which calls of which algorithm it is made of: those of
  /// the next row. Collective.
  void watch(const std::function<void()>& operation);

  /// Fits the model to the rows, adds its times to them, and prints them beside what was measured.
  /// For an allreduce it also measures and adds the costs of a simulation. Collective.
  void add_to(Report& report) const;

 private:
  void add_link_costs(Report& report, const std::vector<MeasuredCost>& measured) const;
  /// Measures those of the network with a backend alone, else those of ranks of one host.
  SimulationCosts fit_simulation(const Json& rows, bool has_links) const;

  /// A row.
  struct Watched {
    CostTerms terms;         ///< of all calls
    std::string algorithms;  ///< empty: none was used
  };

  Session& session_;
  const Collective collective_;
  std::vector<Watched> rows_;
};

}  // namespace ronde::tool
