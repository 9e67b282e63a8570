# What is installed beside programs and library, and the Debian package of all of it: cpack -G DEB in the build folder.
include(GNUInstallDirs)
# Below the prefix alone, so that any prefix is as good as /usr; the package's postinst brings the configuration to /etc.
install(FILES deploy/systemd/kvtierd.service DESTINATION lib/systemd/system)
install(FILES deploy/systemd/kvtier.sysusers DESTINATION lib/sysusers.d RENAME kvtier.conf)
install(FILES deploy/kvtier.toml DESTINATION ${CMAKE_INSTALL_DATADIR}/kvtier)
install(FILES deploy/kubernetes/seccomp-kvtier.json DESTINATION ${CMAKE_INSTALL_DATADIR}/kvtier)
install(DIRECTORY monitoring/ DESTINATION ${CMAKE_INSTALL_DATADIR}/kvtier/monitoring
        PATTERN "*.h" EXCLUDE PATTERN "*.cc" EXCLUDE PATTERN "CMakeLists.txt" EXCLUDE)
install(FILES deploy/man/kvtierctl.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
install(FILES deploy/man/kvtier.toml.5 DESTINATION ${CMAKE_INSTALL_MANDIR}/man5)
install(FILES deploy/man/kvtierd.8 DESTINATION ${CMAKE_INSTALL_MANDIR}/man8)
install(FILES README.md DESTINATION ${CMAKE_INSTALL_DOCDIR})

set(CPACK_PACKAGE_NAME kvtier)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_CONTACT "kvtier <kvtier@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "tiered KV-cache memory manager for LLM inference")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_GENERATOR DEB)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION net)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_DEPENDS "adduser")
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "prometheus")
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS OFF)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA
  ${CMAKE_SOURCE_DIR}/deploy/package/postinst
  ${CMAKE_SOURCE_DIR}/deploy/package/prerm
  ${CMAKE_SOURCE_DIR}/deploy/package/postrm
  ${CMAKE_SOURCE_DIR}/deploy/package/triggers)
include(CPack)
