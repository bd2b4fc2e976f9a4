// SPDX-License-Identifier: Apache-2.0
#include "tools/run/agent/agent.h"

#include <netinet/in.h>
#include <sodium.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "ronde/config.h"
#include "ronde/error.h"
#include "tools/vendor.h"

namespace ronde::tool::launch {
namespace {

namespace fs = std::filesystem;

constexpr rlim_t kFilesOfRank = 128;  // of Ronde and a program, without one for each other rank
constexpr rlim_t kFilesOfAgent = 64;  // and some for each rank
constexpr long kMemoryOfRank = 256;   // MiB: less than this, a program with LibTorch does not start
constexpr std::size_t kHashBytes = 16;

bool is_program(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored) && access(path.c_str(), X_OK) == 0;
}

/// Returns the path at which execvp would find the program with this PATH.
std::optional<fs::path> find_program(const std::string& name, const fs::path& folder,
                                     const std::string& search_path) {
  if (name.find('/') != std::string::npos) {
    const fs::path path = folder / name;
    return is_program(path) ? std::optional(path) : std::nullopt;
  }
  std::istringstream folders(search_path);
  for (std::string place; std::getline(folders, place, ':');) {
    if (is_program(folder / place / name)) return folder / place / name;
  }
  return std::nullopt;
}

std::string hash_of(const fs::path& path) {
  crypto_generichash_state state;
  crypto_generichash_init(&state, nullptr, 0, kHashBytes);
  std::ifstream file(path, std::ios::binary);
  std::vector<char> buffer(std::size_t{1} << 20);
  while (file.read(buffer.data(), static_cast<std::streamsize>(buffer.size())) ||
         file.gcount() > 0) {
    crypto_generichash_update(&state, reinterpret_cast<const unsigned char*>(buffer.data()),
                              static_cast<unsigned long long>(file.gcount()));
  }
  std::array<unsigned char, kHashBytes> hash{};
  crypto_generichash_final(&state, hash.data(), hash.size());
  std::array<char, 2 * kHashBytes + 1> text{};
  sodium_bin2hex(text.data(), text.size(), hash.data(), hash.size());
  return text.data();
}

void check_program(const Json& order, Findings& findings) {
  const std::string folder = order.at("folder"), program = order.at("program");
  std::error_code ignored;
  if (!fs::is_directory(folder, ignored)) {
    findings.problems.push_back("there is no folder " + folder +
                                ", in which the job was started: make it there, or use --chdir");
    return;
  }
  const std::optional<fs::path> path = find_program(program, folder, order.at("search_path"));
  if (path) {
    findings.program = hash_of(*path);
    return;
  }
  const bool is_path = program.find('/') != std::string::npos;
  findings.problems.push_back("there is no program " + program +
                              (is_path ? " (seen from " + folder + ")" : " in PATH") +
                              " that can be executed");
}

/// The library raises the limit of its process as far as it may.
void check_limits(const Json& order, Findings& findings) {
  const auto ranks = order.at("ranks").get<rlim_t>(), size = order.at("size").get<rlim_t>();
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  const rlim_t needed = std::max(size + kFilesOfRank, 4 * ranks + kFilesOfAgent);
  if (files.rlim_max < needed) {
    findings.problems.push_back("a process may have " + std::to_string(files.rlim_max) +
                                " open files (ulimit -Hn), and " + std::to_string(needed) +
                                " are needed: raise that limit");
  }
  const Fd memory(memfd_create("ronde", MFD_CLOEXEC));
  if (!memory || ftruncate(memory.get(), 1) != 0) {
    findings.problems.push_back(std::string("there is no shared memory for the ranks: ") +
                                "memfd_create: " + std::strerror(errno));
  }
  std::ifstream file("/proc/meminfo");
  for (std::string name, unit; file >> name;) {
    long kilobytes = 0;
    file >> kilobytes;
    std::getline(file, unit);
    const long available = kilobytes >> 10;
    if (name != "MemAvailable:" || available >= static_cast<long>(ranks) * kMemoryOfRank) continue;
    findings.warnings.push_back("only " + std::to_string(available) + " MiB of memory for " +
                                std::to_string(ranks) + " ranks and what they share");
  }
}

/// Ranks take GPUs by their local rank.
void check_gpus(int ranks, Findings& findings) {
  const std::size_t gpus = ask_cuda(vendor::dynamic_symbols()).gpus.size();
  if (gpus == 0 || gpus >= static_cast<std::size_t>(ranks)) return;
  findings.warnings.push_back(std::to_string(gpus) + " visible GPUs for " + std::to_string(ranks) +
                              " ranks: some share one, if they use them");
}

Fd bind_port(int number) {
  Fd holder(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int one = 1;
  setsockopt(holder.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(number));
  const auto* const place = reinterpret_cast<const sockaddr*>(&address);
  return bind(holder.get(), place, sizeof address) == 0 ? std::move(holder) : Fd();
}

int port_of(const Fd& holder) {
  sockaddr_in address{};
  socklen_t length = sizeof address;
  if (getsockname(holder.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0) return 0;
  return ntohs(address.sin_port);
}

}  // namespace

Findings check_host(const Json& order) {
  Findings findings;
  check_program(order, findings);
  check_limits(order, findings);
  if (order.at("restart") == 0) check_gpus(order.at("ranks"), findings);
  return findings;
}

ReservedPorts reserve_ports() {
  constexpr int kTries = 100;
  for (int i = 0; i < kTries; ++i) {
    ReservedPorts ports;
    ports.first = bind_port(0);
    ports.number = ports.first ? port_of(ports.first) : 0;
    if (ports.number > 0 && ports.number < 65535) ports.second = bind_port(ports.number + 1);
    if (ports.second) return ports;
  }
  fail("there are no two free TCP ports for MASTER_PORT");
}

}  // namespace ronde::tool::launch
