// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <charconv>
#include <optional>
#include <string>
#include <system_error>

#include "ronde/config.h"

namespace ronde {

/// The MPI of a program that initialised it before init.
struct ProgramMpi {
  bool is_there = false;
  /// Its thread level, such as "MPI_THREAD_FUNNELED", if that is below MPI_THREAD_MULTIPLE; Ronde
  /// may then call MPI within init only.
  std::string low_level = {};
};

namespace detail {

/// The number in a launcher's variable; nothing if it is unset or not a number.
template <typename Number = int>
std::optional<Number> number_in(const EnvironmentLookup& variables, const std::string& name) {
  const std::optional<std::string> text = variables(name);
  if (!text) return std::nullopt;
  Number value = 0;
  const char* const end = text->data() + text->size();
  const auto [rest, code] = std::from_chars(text->data(), end, value);
  if (code != std::errc() || rest != end) return std::nullopt;
  return value;
}

}  // namespace detail

/// Returns the variable by which a launcher says that it started several ranks, as "PMI_SIZE=4";
/// empty if none does. For a process whose transport knows of one rank only. SLURM_NTASKS,
/// HOROVOD_SIZE and WORLD_SIZE (set by torchrun and the Kubeflow Training Operator) count unless an
/// MPI launcher says otherwise: SLURM_NTASKS without one means that srun was not used. torchrun's
/// WORLD_SIZE always counts, because srun starts torchrun once a node, and then sets PMI_SIZE=1.
inline std::string foreign_launcher(const EnvironmentLookup& variables) {
  bool has_mpi_launcher = false;
  for (const char* const name : {"PMI_SIZE", "OMPI_COMM_WORLD_SIZE"}) {
    const std::optional<int> size = detail::number_in(variables, name);
    if (size && *size > 1) return std::string(name) + "=" + std::to_string(*size);
    has_mpi_launcher = has_mpi_launcher || size.has_value();
  }
  // PMIx gives a process its rank, but not the number of ranks.
  const std::optional<int> pmix_rank = detail::number_in(variables, "PMIX_RANK");
  if (pmix_rank && *pmix_rank > 0) return "PMIX_RANK=" + std::to_string(*pmix_rank);
  const std::optional<int> world = detail::number_in(variables, "WORLD_SIZE");
  const bool world_counts = !has_mpi_launcher || variables("TORCHELASTIC_RUN_ID");
  if (world_counts && world && *world > 1) return "WORLD_SIZE=" + std::to_string(*world);
  for (const char* const name : {"HOROVOD_SIZE", "SLURM_NTASKS"}) {
    const std::optional<int> size = detail::number_in(variables, name);
    if (!has_mpi_launcher && size && *size > 1)
      return std::string(name) + "=" + std::to_string(*size);
  }
  return {};
}

}  // namespace ronde
