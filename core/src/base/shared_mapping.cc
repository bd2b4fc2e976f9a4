// SPDX-License-Identifier: Apache-2.0
#include "core/src/base/shared_mapping.h"

#include <pthread.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstdlib>
#include <mutex>
#include <utility>
#include <vector>

#include "ronde/error.h"

namespace ronde {

struct SharedMapping::Entry {
  void become_private() const noexcept;

  std::span<std::byte> bytes;
  MappedRange own;
  UniqueFd file;  ///< none without `own`
};

/// Called in a child of fork(), and so makes system calls only.
void SharedMapping::Entry::become_private() const noexcept {
  // The addresses stay mapped: pointers into them must not reach other memory later.
  constexpr int kInPlace = MAP_PRIVATE | MAP_NORESERVE | MAP_FIXED;
  const void* const cut =
      ::mmap(bytes.data(), bytes.size(), PROT_NONE, kInPlace | MAP_ANONYMOUS, -1, 0);
  if (cut == MAP_FAILED) std::abort();  // it would write its parent's memory
  if (own.bytes == 0) return;
  // Where this fails, the child cannot reach its own part either.
  static_cast<void>(::mmap(bytes.data() + own.offset, own.bytes, PROT_READ | PROT_WRITE, kInPlace,
                           file.get(), static_cast<off_t>(own.offset)));
}

/// All mappings that children must not inherit. Never destroyed.
struct SharedMapping::List {
  static List& instance() {
    static auto* const list = new List;
    return *list;
  }

  List() {
    const int error =
        ::pthread_atfork([] { instance().mutex.lock(); }, [] { instance().mutex.unlock(); },
                         [] {
                           for (const Entry* each : instance().entries) {
                             each->become_private();
                           }
                           // A child of the child inherits private memory.
                           instance().entries.clear();
                           instance().mutex.unlock();
                         });
    if (error != 0) throw Error("pthread_atfork: " + errno_text(error));
  }

  std::mutex mutex;  ///< held during every fork(): the list is consistent in the child
  std::vector<const Entry*> entries;  ///< guarded by mutex
};

SharedMapping::SharedMapping(UniqueFd file, std::size_t bytes, MappedRange own) {
  auto entry = std::make_unique<Entry>();
  List& list = List::instance();
  const std::lock_guard lock(list.mutex);
  list.entries.reserve(list.entries.size() + 1);
  void* const address = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (address == MAP_FAILED) throw Error("mmap: " + errno_text(errno));
  entry->bytes = {static_cast<std::byte*>(address), bytes};
  entry->own = own;
  if (own.bytes > 0) entry->file = std::move(file);
  list.entries.push_back(entry.get());
  entry_.reset(entry.release());
}

void SharedMapping::Unmap::operator()(Entry* entry) const noexcept {
  const std::unique_ptr<Entry> owner(entry);
  List& list = List::instance();
  const std::lock_guard lock(list.mutex);
  std::erase(list.entries, entry);
  ::munmap(entry->bytes.data(), entry->bytes.size());
}

std::span<std::byte> SharedMapping::bytes() const noexcept {
  return entry_ ? entry_->bytes : std::span<std::byte>();
}

}  // namespace ronde
