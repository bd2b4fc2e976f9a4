// SPDX-License-Identifier: Apache-2.0
#include "observe/live/top_socket.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "core/src/base/json.h"
#include "observe/base/figures_json.h"
#include "ronde/build_info.h"
#include "ronde/error.h"

namespace ronde {
namespace {

constexpr int kBacklog = 8;
constexpr std::chrono::seconds kSamplePeriod{1};

[[noreturn]] void fail(const std::string& path, const std::string& why) {
  throw Error(path + " cannot be opened: " + why);
}

/// Something at `path` is a socket on which no process listens.
bool is_left_over(const std::string& path, const sockaddr_un& address) {
  struct stat status {};
  if (lstat(path.c_str(), &status) != 0 || !S_ISSOCK(status.st_mode)) return false;
  const int client = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  const bool refused =
      connect(client, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 &&
      errno == ECONNREFUSED;
  close(client);
  return refused;
}

std::string path_of(const Runtime& runtime) {
  const std::string& world = runtime.world_name();
  return top_folder() + "/" + std::to_string(getpid()) + "." +
         std::to_string(runtime.topology().rank) + (world.empty() ? "" : "." + world) + ".sock";
}

}  // namespace

std::string top_folder() {
  const std::string user = std::to_string(geteuid());
  std::string runtime_folder = process_environment()("XDG_RUNTIME_DIR").value_or("");
  // A batch system may start ranks without the variable that a login has.
  std::error_code ignored;
  const std::string of_login = "/run/user/" + user;
  if (runtime_folder.empty() && std::filesystem::is_directory(of_login, ignored)) {
    runtime_folder = of_login;
  }
  return runtime_folder.empty() ? "/tmp/ronde-" + user : runtime_folder + "/ronde";
}

void check_top_folder(const std::string& folder) {
  struct stat status {};
  if (lstat(folder.c_str(), &status) != 0) fail(folder, std::strerror(errno));
  const bool is_private = (status.st_mode & (S_IRWXG | S_IRWXO)) == 0;
  if (S_ISDIR(status.st_mode) && status.st_uid == geteuid() && is_private) return;
  fail(folder, "it is not a folder of this user alone (mode 0700); set XDG_RUNTIME_DIR to one");
}

TopSocket::TopSocket(const Runtime& runtime, std::string host, ReadGpu read_gpu)
    : runtime_(runtime),
      host_(std::move(host)),
      path_(path_of(runtime)),
      sampler_(std::move(read_gpu)) {
  const std::string folder = top_folder();
  if (mkdir(folder.c_str(), S_IRWXU) != 0 && errno != EEXIST) fail(folder, std::strerror(errno));
  check_top_folder(folder);
  listener_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (listener_ < 0) fail(path_, std::strerror(errno));
  try {
    open();
  } catch (...) {
    close(listener_);
    throw;
  }
}

void TopSocket::open() {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path_.size() >= sizeof address.sun_path) {
    fail(path_, "the path is too long for a socket; set XDG_RUNTIME_DIR to a shorter one");
  }
  path_.copy(address.sun_path, path_.size());
  const auto bound = [&] {
    return bind(listener_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  };
  if (!bound()) {
    const int error = errno;
    if (error != EADDRINUSE || !is_left_over(path_, address)) fail(path_, std::strerror(error));
    unlink(path_.c_str());
    if (!bound()) fail(path_, std::strerror(errno));
  }
  if (chmod(path_.c_str(), S_IRUSR | S_IWUSR) == 0 && listen(listener_, kBacklog) == 0) return;
  const int error = errno;
  unlink(path_.c_str());
  fail(path_, std::strerror(error));
}

TopSocket::~TopSocket() {
  unlink(path_.c_str());
  close(listener_);
}

void TopSocket::take(std::span<const Event>, std::uint64_t) {
  const auto now = std::chrono::steady_clock::now();
  if (now >= next_sample_) {
    sample_ = sampler_.sample();
    next_sample_ = now + kSamplePeriod;
  }
  for (int i = 0; i < kBacklog; ++i) {
    const int client = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (client < 0) return;
    // A line fits the socket's buffer. A client that gets a part of one asks again.
    const std::string text = line();
    static_cast<void>(send(client, text.data(), text.size(), MSG_NOSIGNAL));
    close(client);
  }
}

std::string TopSocket::line() const {
  const Topology& topology = runtime_.topology();
  nlohmann::ordered_json json = {
      {"ronde_top", 1},
      {"version", build_info::kVersion},
      {"program", program_invocation_short_name},
      {"pid", getpid()},
      {"launcher", getppid()},
      {"host", host_},
      {"world", runtime_.world_name()},
      {"rank", topology.rank},
      {"ranks", topology.size},
      {"hosts", topology.hosts()},
      {"backends",
       {{"cpu", runtime_.backend_name(DeviceKind::Cpu)},
        {"cuda", runtime_.backend_name(DeviceKind::Cuda)}}},
      {"system",
       {{"cpu_cores", sample_.cpu_cores},
        {"resident_bytes", sample_.resident_bytes},
        {"network_received_bytes_per_s", sample_.network_received_bytes_per_s},
        {"network_sent_bytes_per_s", sample_.network_sent_bytes_per_s}}},
      {"figures", to_json(runtime_.figures(), topology.rank, Histograms::Without)}};
  for (const auto& [name, value] : sample_.gpu) json["system"][name] = value;
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace ronde
