// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "backends/gpu/kernels/elements.h"

// What each thread of a grid does, as functions of its number: kernels call them on a GPU, tests on
// the CPU. Blocks divide tiles of bytes among them. A thread takes 16 bytes of each tile in one
// access, and has several accesses in flight; unaligned memory and the last elements are accessed
// one by one.

namespace ronde::cuda::kernels {

constexpr unsigned kThreads = 512;
/// Bytes of a tile, in the wider type: one access of 16 bytes by each thread, so that small
/// messages are spread over many blocks.
constexpr std::uint64_t kTileBytes = 16 * kThreads;
/// The most inputs of a reduction that are not at equal distances, and so ranks by CUDA IPC.
constexpr unsigned kMostInputs = 64;

/// A thread of a grid of any size.
struct Place {
  unsigned block;
  unsigned blocks;
  unsigned thread;  ///< of kThreads in its block
};

struct Range {
  std::uint64_t begin;
  std::uint64_t end;
};

/// The tiles of a block, which are neighbours, so that concurrent blocks are spread over the memory
/// of all ranks.
RONDE_EVERYWHERE Range tiles_of_block(std::uint64_t tiles, const Place& place) {
  return {tiles * place.block / place.blocks, tiles * (place.block + 1) / place.blocks};
}

/// A piece of a tensor that is copied into the fusion buffer, or out of it.
struct SegmentCopy {
  const void* source;  ///< null: the neutral element is written
  void* target;
  std::uint32_t count;       ///< of elements, not 0
  std::uint32_t first_tile;  ///< of this segment, among the tiles of all
};

/// Segments of a launch: they fit into the 4 KiB of parameters that every driver takes.
constexpr unsigned kMostSegments = 169;
/// The most elements of a segment; a multiple of a chunk, as longer segments are split.
constexpr std::uint64_t kMostElements = std::uint64_t{1} << 31;

struct CopyArguments {
  Scale scale;
  Operation neutral_of;
  std::uint32_t count;  ///< of segments
  std::uint32_t tiles;
  SegmentCopy segments[kMostSegments];
};
static_assert(sizeof(CopyArguments) <= 4096);

/// Tiles of a segment whose wider type has `width` bytes.
RONDE_EVERYWHERE std::uint64_t tiles_of(std::uint64_t count, std::size_t width) {
  return (count * width + kTileBytes - 1) / kTileBytes;
}

/// The segment of a tile.
RONDE_EVERYWHERE std::uint32_t segment_of(const CopyArguments& how, std::uint64_t tile) {
  std::uint32_t first = 0;
  for (std::uint32_t count = how.count; count > 1;) {
    const std::uint32_t half = count / 2;
    const bool is_behind = how.segments[first + half].first_tile <= tile;
    first += is_behind ? half : 0;
    count = is_behind ? count - half : half;
  }
  return first;
}

/// `kCount` elements that are loaded and stored at once, 16 bytes at most of the wider type.
template <typename Storage, unsigned kCount>
struct alignas(sizeof(Storage) * kCount < 16 ? sizeof(Storage) * kCount : 16) Chunk {
  Storage values[kCount];
};

/// Stores by one access. Without inline assembly, nvcc 13 splits the first of several stores of
/// chunks into stores of elements.
template <typename Stored>
RONDE_EVERYWHERE void store(void* to, const Stored& stored) {
#ifdef __CUDACC__
  const auto address = __cvta_generic_to_global(to);
  if constexpr (sizeof(Stored) == 16) {
    const auto words = bits_as<uint4>(stored);
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(words.x),
                 "r"(words.y), "r"(words.z), "r"(words.w)
                 : "memory");
  } else if constexpr (sizeof(Stored) == 8) {
    const auto words = bits_as<uint2>(stored);
    asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(address), "r"(words.x), "r"(words.y)
                 : "memory");
  } else if constexpr (sizeof(Stored) == 4) {
    asm volatile("st.global.u32 [%0], %1;" ::"l"(address), "r"(bits_as<unsigned>(stored))
                 : "memory");
  } else
#endif
    *static_cast<Stored*>(to) = stored;
}

template <typename Type>
RONDE_EVERYWHERE bool is_aligned(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % alignof(Type) == 0;
}

template <typename From, typename To>
constexpr unsigned kWidth = sizeof(typename From::Storage) > sizeof(typename To::Storage)
                                ? sizeof(typename From::Storage)
                                : sizeof(typename To::Storage);
/// Elements of a chunk, and of a tile.
template <typename From, typename To>
constexpr unsigned kChunk = 16 / kWidth<From, To>;
template <typename From, typename To>
constexpr std::uint64_t kTile = kTileBytes / kWidth<From, To>;

template <typename From, typename To>
RONDE_EVERYWHERE typename To::Storage convert(typename From::Storage value, Scale scale) {
  // In the precision of the wider one.
  if constexpr (sizeof(typename From::Storage) >= sizeof(typename To::Storage)) {
    return To::narrow(converted<To>(canonical(scaled<From>(From::widen(value), scale))));
  } else {
    return To::narrow(canonical(scaled<To>(converted<To>(From::widen(value)), scale)));
  }
}

/// Copies `kChunks` chunks, kThreads chunks apart. All are loaded before the first is stored: the
/// compiler cannot know that stores do not change what is loaded next.
template <typename From, typename To, unsigned kChunks>
RONDE_EVERYWHERE void copy_chunks(const typename From::Storage* source,
                                  typename To::Storage* target, Scale scale) {
  constexpr unsigned kCount = kChunk<From, To>;
  using Loaded = Chunk<typename From::Storage, kCount>;
  using Stored = Chunk<typename To::Storage, kCount>;
  Loaded loaded[kChunks];
  RONDE_UNROLL
  for (unsigned c = 0; c < kChunks; ++c) {
    loaded[c] = *reinterpret_cast<const Loaded*>(source + c * kThreads * kCount);
  }
  RONDE_UNROLL
  for (unsigned c = 0; c < kChunks; ++c) {
    Stored stored;
    for (unsigned k = 0; k < kCount; ++k) {
      stored.values[k] = convert<From, To>(loaded[c].values[k], scale);
    }
    store(target + c * kThreads * kCount, stored);
  }
}

/// Copies a thread's part of a segment's elements from `begin`, where a tile begins, to `end`.
template <typename From, typename To>
RONDE_EVERYWHERE void copy_elements(const CopyArguments& how, const SegmentCopy& segment,
                                    std::uint64_t begin, std::uint64_t end, unsigned thread) {
  constexpr unsigned kCount = kChunk<From, To>;
  constexpr unsigned kTogether = 4;
  const auto* const source = static_cast<const typename From::Storage*>(segment.source);
  auto* const target = static_cast<typename To::Storage*>(segment.target);
  if (source == nullptr) {
    const auto value = To::narrow(neutral<To>(how.neutral_of));
    for (std::uint64_t i = begin + thread; i < end; i += kThreads) target[i] = value;
    return;
  }
  const bool aligned = is_aligned<Chunk<typename From::Storage, kCount>>(source) &&
                       is_aligned<Chunk<typename To::Storage, kCount>>(target);
  const std::uint64_t chunks = aligned ? (end - begin) / kCount : 0;
  std::uint64_t i = thread;
  for (; i + (kTogether - 1) * kThreads < chunks; i += kTogether * kThreads) {
    const std::uint64_t at = begin + i * kCount;
    copy_chunks<From, To, kTogether>(source + at, target + at, how.scale);
  }
  for (; i < chunks; i += kThreads) {
    const std::uint64_t at = begin + i * kCount;
    copy_chunks<From, To, 1>(source + at, target + at, how.scale);
  }
  for (i = begin + chunks * kCount + thread; i < end; i += kThreads) {
    target[i] = convert<From, To>(source[i], how.scale);
  }
}

template <typename From, typename To>
RONDE_EVERYWHERE void copy_segments(const CopyArguments& how, const Place& place) {
  const Range own = tiles_of_block(how.tiles, place);
  for (std::uint32_t i = segment_of(how, own.begin);
       i < how.count && how.segments[i].first_tile < own.end; ++i) {
    const SegmentCopy& segment = how.segments[i];
    const std::uint64_t first = segment.first_tile;
    const std::uint64_t begin = (own.begin > first ? own.begin - first : 0) * kTile<From, To>;
    const std::uint64_t end = (own.end - first) * kTile<From, To>;
    copy_elements<From, To>(how, segment, begin, end < segment.count ? end : segment.count,
                            place.thread);
  }
}

/// The inputs of all ranks, in rank order, and the output, which may be an input.
struct ReductionArguments {
  const void* inputs[kMostInputs];  ///< with a stride, only the first
  std::uint64_t stride;             ///< bytes from one input to the next; 0: each has a pointer
  void* output;
  std::uint64_t count;
  std::uint32_t input_count;  ///< 1 or more
  Operation operation;
  double prescale;
  Scale final_scale;
};

RONDE_EVERYWHERE const void* input_of(const ReductionArguments& how, std::uint32_t input) {
  if (how.stride == 0) return how.inputs[input];
  return static_cast<const char*>(how.inputs[0]) + input * how.stride;
}

/// Reduces `kChunks` chunks, kThreads chunks apart, from the element `at` on. Those of an input are
/// all loaded before the first is used.
template <typename Element, bool kIsSum, unsigned kCount, unsigned kChunks>
RONDE_EVERYWHERE void reduce_chunks(const ReductionArguments& how, std::uint64_t at) {
  using Storage = typename Element::Storage;
  using Loaded = Chunk<Storage, kCount>;
  constexpr unsigned kApart = kThreads * kCount;
  const Operation operation = kIsSum ? Operation::Sum : how.operation;
  typename Element::Wide results[kChunks][kCount] = {};
  for (std::uint32_t input = 0; input < how.input_count; ++input) {
    const auto* const from = static_cast<const Storage*>(input_of(how, input)) + at;
    Loaded loaded[kChunks];
    RONDE_UNROLL
    for (unsigned c = 0; c < kChunks; ++c) {
      loaded[c] = *reinterpret_cast<const Loaded*>(from + c * kApart);
    }
    RONDE_UNROLL
    for (unsigned c = 0; c < kChunks; ++c) {
      RONDE_UNROLL
      for (unsigned k = 0; k < kCount; ++k) {
        const auto operand =
            scaled<Element>(Element::widen(loaded[c].values[k]), {how.prescale, 1});
        auto& result = results[c][k];
        result = input > 0 ? combined<Element>(result, operand, operation) : operand;
      }
    }
  }
  RONDE_UNROLL
  for (unsigned c = 0; c < kChunks; ++c) {
    Loaded stored;
    RONDE_UNROLL
    for (unsigned k = 0; k < kCount; ++k) {
      stored.values[k] =
          Element::narrow(canonical(scaled<Element>(results[c][k], how.final_scale)));
    }
    store(static_cast<Storage*>(how.output) + at + c * kApart, stored);
  }
}

template <typename Element, bool kIsSum>
RONDE_EVERYWHERE void reduce_tiles(const ReductionArguments& how, const Place& place) {
  constexpr unsigned kCount = kChunk<Element, Element>;
  constexpr unsigned kTogether = kCount > 8 ? 2 : 4;  // more results have no registers
  using Loaded = Chunk<typename Element::Storage, kCount>;
  const Range tiles = tiles_of_block(tiles_of(how.count, sizeof(typename Element::Storage)), place);
  const std::uint64_t begin = tiles.begin * kTile<Element, Element>;
  const std::uint64_t limit = tiles.end * kTile<Element, Element>;
  const std::uint64_t end = limit < how.count ? limit : how.count;
  bool aligned = is_aligned<Loaded>(how.output);
  for (std::uint32_t i = 0; i < how.input_count; ++i) {
    aligned = aligned && is_aligned<Loaded>(input_of(how, i));
  }
  const std::uint64_t chunks = aligned ? (end - begin) / kCount : 0;
  std::uint64_t i = place.thread;
  for (; i + (kTogether - 1) * kThreads < chunks; i += kTogether * kThreads) {
    reduce_chunks<Element, kIsSum, kCount, kTogether>(how, begin + i * kCount);
  }
  for (; i < chunks; i += kThreads) {
    reduce_chunks<Element, kIsSum, kCount, 1>(how, begin + i * kCount);
  }
  for (i = begin + chunks * kCount + place.thread; i < end; i += kThreads) {
    reduce_chunks<Element, kIsSum, 1, 1>(how, i);
  }
}

/// Sums, the common case, have no branches between their loads.
template <typename Element>
RONDE_EVERYWHERE void reduce_elements(const ReductionArguments& how, const Place& place) {
  if (how.operation == Operation::Sum) return reduce_tiles<Element, true>(how, place);
  reduce_tiles<Element, false>(how, place);
}

}  // namespace ronde::cuda::kernels
