// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mpi.h>

#include <memory>
#include <string>
#include <vector>

/// A model that a simulation trains while it runs: Ronde and LibTorch stay behind this header,
/// which a host in C++17 can include.
class OnlineModel {
 public:
  /// Trained by the ranks of `communicator` together, each of which makes it; by this process alone
  /// and without Ronde where that is MPI_COMM_NULL. `script`: a TorchScript file, which all of them
  /// can read; empty: a network of two layers. `name`: of its ronde::World.
  OnlineModel(const std::string& name, MPI_Comm communicator, const std::string& script = "");
  ~OnlineModel();
  OnlineModel(const OnlineModel&) = delete;
  OnlineModel& operator=(const OnlineModel&) = delete;

  /// A step with samples of this rank, three numbers each, and what they should give. Returns the
  /// loss on them before the step.
  double train(std::vector<double>& inputs, std::vector<double>& targets);
  /// The parameters, one after the other.
  std::vector<double> parameters() const;
  /// All ranks call it together, at the end.
  void finish();

  /// Writes a network of one layer as a TorchScript file. Python would write
  /// torch.jit.script(model).save(path).
  static void write_script(const std::string& path);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};
