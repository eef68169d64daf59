// SPDX-License-Identifier: Apache-2.0
#pragma once

// The implementation of Boost.Test and main() are compiled once, in boost_test_main.cpp: a test
// defines no BOOST_TEST_MODULE.
#include <boost/test/unit_test.hpp>
