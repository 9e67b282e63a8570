# What an engine is built with, on `cmake --install`: library, headers, pkg-config and CMake packages.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

install(TARGETS kvtier EXPORT kvtierTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY include/kvtier DESTINATION include)

# From the file's own place, so that the tree may be moved. Debian's libdir has a folder more than others.
file(RELATIVE_PATH pc_up /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
string(REGEX REPLACE "/$" "" pc_up "${pc_up}")
configure_file(kvtier.pc.in ${CMAKE_CURRENT_BINARY_DIR}/kvtier.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/kvtier.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

set(package ${CMAKE_INSTALL_LIBDIR}/cmake/kvtier)
install(EXPORT kvtierTargets NAMESPACE kvtier:: DESTINATION ${package})
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/kvtierConfigVersion.cmake COMPATIBILITY SameMinorVersion)
configure_package_config_file(kvtierConfig.cmake.in ${CMAKE_CURRENT_BINARY_DIR}/kvtierConfig.cmake
                              INSTALL_DESTINATION ${package})
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/kvtierConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/kvtierConfigVersion.cmake
        DESTINATION ${package})
