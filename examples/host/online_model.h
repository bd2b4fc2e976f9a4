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
  /// Makes a model that the ranks of `communicator` train together; each of them makes it. With
  /// MPI_COMM_NULL this process trains it alone, without Ronde. `name` is that of its ronde::World.
  /// `script` is a TorchScript file that all of them can read; empty: a network of two layers.
  OnlineModel(const std::string& name, MPI_Comm communicator, const std::string& script = "");
  ~OnlineModel();
  OnlineModel(const OnlineModel&) = delete;
  OnlineModel& operator=(const OnlineModel&) = delete;

  /// Takes a step with samples of this rank, three numbers each, and their targets. Returns the
  /// loss on them before the step.
  double train(std::vector<double>& inputs, std::vector<double>& targets);
  /// Returns the parameters, one after the other.
  std::vector<double> parameters() const;
  /// Shuts its world down. Collective, at the end.
  void finish();

  /// Writes a network of one layer as a TorchScript file. Python would write
  /// torch.jit.script(model).save(path).
  static void write_script(const std::string& path);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};
