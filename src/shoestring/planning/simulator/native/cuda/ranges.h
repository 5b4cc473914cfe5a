// Free ranges of addresses, from which the first that fits is taken; neighbours grow together again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

namespace simulator {

constexpr size_t round_up(size_t bytes, size_t multiple) { return (bytes + multiple - 1) / multiple * multiple; }

class FreeRanges {
 public:
  // Gives back a range, or adds one.
  void give(uintptr_t begin, size_t bytes) {
    auto next = ranges_.lower_bound(begin);
    if (next != ranges_.end() && next->first == begin + bytes) {
      bytes += next->second;
      next = ranges_.erase(next);
    }
    if (next != ranges_.begin()) {
      auto previous = std::prev(next);
      if (previous->first + previous->second == begin) {
        previous->second += bytes;
        return;
      }
    }
    ranges_.emplace(begin, bytes);
  }

  // Takes so many bytes from the first range that has them; 0 if none has. All sizes given and taken should be multiples of one
  // alignment, which the addresses then have as well.
  uintptr_t take(size_t bytes) {
    for (auto range = ranges_.begin(); range != ranges_.end(); ++range) {
      if (range->second < bytes) continue;
      const uintptr_t begin = range->first;
      const size_t rest = range->second - bytes;
      ranges_.erase(range);
      if (rest > 0) ranges_.emplace(begin + bytes, rest);
      return begin;
    }
    return 0;
  }

  // Takes exactly this range; false if some of it is not free.
  bool take_at(uintptr_t begin, size_t bytes) {
    auto range = ranges_.upper_bound(begin);
    if (range == ranges_.begin()) return false;
    --range;
    const uintptr_t range_begin = range->first;
    const uintptr_t range_end = range_begin + range->second;
    if (begin + bytes > range_end) return false;
    ranges_.erase(range);
    if (begin > range_begin) ranges_.emplace(range_begin, begin - range_begin);
    if (range_end > begin + bytes) ranges_.emplace(begin + bytes, range_end - begin - bytes);
    return true;
  }

  // Whether all of the range is free.
  bool contains(uintptr_t begin, size_t bytes) const {
    auto range = ranges_.upper_bound(begin);
    if (range == ranges_.begin()) return false;
    --range;
    return begin + bytes <= range->first + range->second;
  }

 private:
  std::map<uintptr_t, size_t> ranges_;
};

}  // namespace simulator
