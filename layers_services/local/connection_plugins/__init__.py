"""Found by Ansible through `ANSIBLE_CONNECTION_PLUGINS`; see
`laggard.layers_services.local.provider`.
"""
